"""Tunnels into the environment's network, and listeners there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import textwrap
import threading
import time
from typing import Iterator

import pytest
from conftest import CuttingProxy, Server, wait_for

from exec_server import (
    PIPE,
    AsyncEnvironment,
    AsyncTunnel,
    ClosedError,
    Environment,
    HostError,
    SandboxPolicy,
    TunnelClosedError,
    UnsupportedError,
    _client,
)


class EchoServer:
    """Sends everything back, and ends its direction after the other one."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while True:
                    data = connection.recv(65536)
                    if not data:
                        break
                    connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def stop(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.stop()


async def exchange(tunnel: AsyncTunnel, data: bytes) -> bytes:
    """Writes everything, ends that direction, and returns what comes back."""

    async def write() -> None:
        for start in range(0, len(data), 100_000):
            await tunnel.write(data[start : start + 100_000])
        await tunnel.write_eof()

    _, received = await asyncio.gather(write(), tunnel.read_all())
    return received


def test_tunnel_passes_bytes_both_ways_and_half_closes(server: Server, echo: EchoServer) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            async with await env.open_tunnel(echo.port) as tunnel:
                await tunnel.write(b"hello")
                assert await tunnel.read() == b"hello"
                await tunnel.write_eof()
                with pytest.raises(TunnelClosedError):
                    await tunnel.write(b"more")
                assert await tunnel.read() == b""
            data = os.urandom(8 << 20)
            received = await exchange(await env.open_tunnel(echo.port, "127.0.0.1"), data)
            assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()
            assert not env._client.tunnels and env._client.tunnel_bytes == 0

    asyncio.run(run())


def test_tunnels_lose_and_repeat_nothing_over_cuts(proxy: CuttingProxy, echo: EchoServer) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.connect(proxy.url) as env:
            data = [os.urandom(4 << 20) for _ in range(4)]
            tunnels = [await env.open_tunnel(echo.port) for _ in data]
            proxy.cut_randomly(11, 50_000, 1_500_000)
            pairs = zip(tunnels, data)
            received = await asyncio.wait_for(
                asyncio.gather(*(exchange(tunnel, sent) for tunnel, sent in pairs)), 60
            )
            proxy.spare()
            for sent, back in zip(data, received):
                assert hashlib.sha256(sent).digest() == hashlib.sha256(back).digest()
            assert proxy.cuts > 10

    asyncio.run(run())


def test_reader_that_stops_stops_the_writer_at_its_window(
    server: Server, echo: EchoServer
) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            tunnel = await env.open_tunnel(echo.port)
            data = bytes(32 << 20)
            writing = asyncio.ensure_future(tunnel.write(data))
            await asyncio.sleep(0.5)
            assert not writing.done()
            held = sum(len(chunk) for _, chunk in tunnel._buffer)
            assert held <= 1 << 20 and tunnel._unacked_bytes <= 1 << 20
            # Others are not held up.
            async with await env.open_tunnel(echo.port) as other:
                await other.write(b"x")
                assert await other.read() == b"x"
            read = 0
            while read < len(data):
                read += len(await asyncio.wait_for(tunnel.read(1 << 20), 10))
            await writing
            tunnel.abort()

    asyncio.run(run())


def test_listener_accepts_connections_of_the_environment(proxy: CuttingProxy) -> None:
    with Environment.connect(proxy.url) as env:
        with env.listen() as listener:
            script = f"exec 3<>/dev/tcp/127.0.0.1/{listener.port}; cat <&3 & echo hi >&3; wait"
            process = env.spawn(["bash", "-c", script])
            with listener.accept() as tunnel:
                proxy.cut()
                assert tunnel.read() == b"hi\n"
                tunnel.write(b"welcome\n")
            assert process.stdout is not None
            assert process.stdout.readline() == b"welcome\n"
            port = listener.port
            process.kill()
            # Without a connection the close waits for the next one.
            proxy.cut()
        probe = ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"]
        env.list()
        deadline = time.monotonic() + 10
        while env.run(probe, capture_output=True).returncode == 0:
            assert time.monotonic() < deadline, "the port is still open"


def test_tunnel_that_is_closed_without_a_connection_ends(proxy: CuttingProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with Environment.connect(proxy.url) as env:
            tunnel = env.open_tunnel(server.getsockname()[1])
            connection, _ = server.accept()
            with connection:
                connection.settimeout(10)
                proxy.refuse(True)
                proxy.cut()
                wait_for(lambda: env._inner._client._state == "reconnecting")
                tunnel.abort()
                proxy.refuse(False)
                env.list()
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
                # Another response proves that the close has arrived.
                env.list()
                assert not env._inner._client._closed_tunnels


@pytest.mark.parametrize("is_sync", [True, False])
def test_closed_environment_closes_its_forwarded_ports(
    server: Server, echo: EchoServer, is_sync: bool
) -> None:
    async def run() -> None:
        env = await AsyncEnvironment.connect(server.url)
        forward = await env.forward(echo.port)
        address = (forward.host, forward.port)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        await env.close()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(1), 10) == b""
        writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection(*address)
        await forward.close()

    if not is_sync:
        asyncio.run(run())
        return
    env = Environment.connect(server.url)
    forward = env.forward(echo.port)
    env.close()
    with pytest.raises(OSError):
        socket.create_connection((forward.host, forward.port), timeout=5)


def test_forward_is_a_port_of_this_machine(server: Server, echo: EchoServer) -> None:
    with Environment.connect(server.url) as env:
        with env.forward(echo.port) as forward:
            for size in (1, 3_000_000):
                with socket.create_connection((forward.host, forward.port)) as connection:
                    connection.settimeout(10)
                    sender = threading.Thread(target=_send, args=(connection, size))
                    sender.start()
                    received = b""
                    while True:
                        data = connection.recv(65536)
                        if not data:
                            break
                        received += data
                    sender.join()
                    assert received == b"x" * size
        with pytest.raises(OSError):
            socket.create_connection((forward.host, forward.port), timeout=5)


def _send(connection: socket.socket, size: int) -> None:
    connection.sendall(b"x" * size)
    connection.shutdown(socket.SHUT_WR)


def test_ports_name_the_process_that_listens(server: Server) -> None:
    script = (
        "import socket, sys; listener = socket.create_server(('127.0.0.1', 0)); "
        "print(listener.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with Environment.connect(server.url) as env:
        with env.spawn(["python3", "-c", script], stdin=PIPE) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            found = [entry for entry in env.ports() if entry.port == port]
            assert len(found) == 1 and found[0].process_id == process.id
            assert found[0].address == "127.0.0.1"


def test_server_in_a_sandbox_without_network_is_reached_by_a_tunnel(server: Server) -> None:
    script = """
        import socket, sys
        listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
        print("ready", flush=True)
        connection, _ = listener.accept()
        connection.sendall(b"from inside")
    """
    policy = SandboxPolicy.read_only(loopback=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Environment.connect(server.url) as env:
        command = ["python3", "-c", textwrap.dedent(script), str(port)]
        process = env.spawn(command, sandbox=policy)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert [found.port for found in env.ports(process=process)] == [port]
        with pytest.raises(HostError):
            env.open_tunnel(port)
        with env.open_tunnel(port, process=process) as tunnel:
            assert tunnel.read_all() == b"from inside"
        assert process.wait() == 0


def test_unreachable_target_is_a_typed_error(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Environment.connect(server.url) as env:
        with pytest.raises(HostError):
            env.open_tunnel(port)
        with pytest.raises(ValueError):
            env.open_tunnel(1, "not a host")
    monkeypatch.setattr(_client, "_EXTENSIONS", [])
    with Environment.connect(server.url) as env:
        with pytest.raises(UnsupportedError):
            env.open_tunnel(1)
        with pytest.raises(UnsupportedError):
            env.listen()
        with pytest.raises(UnsupportedError):
            env.forward(1)


def test_closed_environment_ends_its_tunnels(server: Server, echo: EchoServer) -> None:
    env = Environment.connect(server.url)
    tunnel = env.open_tunnel(echo.port)
    failures = []

    def read() -> None:
        try:
            tunnel.read()
        except ClosedError as error:
            failures.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    env.close()
    reading.join(10)
    assert failures
