"""Broken connections: nothing is lost, nothing is repeated, nothing hangs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
import threading
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator, List

import pytest
from conftest import CuttingProxy, Server, program

from exec_server import (
    PIPE,
    AsyncEnvironment,
    AsyncProcess,
    CallInterruptedError,
    Environment,
    OutputGapError,
    SessionLostError,
    _client,
)
from exec_server._link import Link, ProgramLink

CUTS = 200


async def echo_until(process: AsyncProcess, stop: asyncio.Event) -> int:
    """Writes numbered lines and checks that exactly these come back."""
    assert process.stdin is not None and process.stdout is not None
    stdin = process.stdin
    written = 0

    async def write() -> None:
        nonlocal written
        while not stop.is_set():
            lines = b"".join(b"%d:%s\n" % (n, b"x" * (n % 300)) for n in range(written, written + 50))
            written += 50
            await stdin.write(lines)
        await stdin.close()

    writing = asyncio.ensure_future(write())
    read = 0
    async for line in process.stdout.lines():
        assert line == b"%d:%s\n" % (read, b"x" * (read % 300)), line
        read += 1
    await writing
    assert read == written
    return read


def test_two_hundred_cuts_under_load_lose_and_repeat_nothing(
    proxy: CuttingProxy, tmp_path: Path
) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.connect(proxy.url) as env:
            stop = asyncio.Event()
            counted = "n=0; while [ ! -e stop ]; do seq $n $((n+2000)); n=$((n+2001)); done"
            producers = [
                await env.spawn(["sh", "-c", counted], cwd=tmp_path),
                await env.spawn(["sh", "-c", f"{counted} >&2"], cwd=tmp_path),
            ]
            echoes = [await env.spawn(["cat"], stdin=PIPE) for _ in range(2)]

            async def check_numbers(process: AsyncProcess, name: str) -> int:
                stream = process.stdout if name == "stdout" else process.stderr
                assert stream is not None
                number = 0
                async for line in stream.lines():
                    assert line == b"%d\n" % number, (line, number)
                    number += 1
                assert await process.wait() == 0
                return number

            async def run_commands() -> int:
                number = 0
                while not stop.is_set():
                    number += 1
                    try:
                        done = await env.run(["echo", str(number)], capture_output=True)
                        assert done.stdout == b"%d\n" % number and done.returncode == 0
                    except CallInterruptedError:
                        # The start could not be repeated; the output is never wrong.
                        pass
                return number

            async def copy_files() -> int:
                content = os.urandom(3 << 20)
                rounds = 0
                while not stop.is_set():
                    path = tmp_path / f"file{rounds % 2}"
                    async with await env.open(path, "wb") as file:
                        await file.write(content)
                    assert path.read_bytes() == content
                    async with await env.open(path) as file:
                        assert await file.read() == content
                    rounds += 1
                return rounds

            proxy.cut_randomly(7, 2_000, 400_000)
            tasks = [
                asyncio.ensure_future(check_numbers(producers[0], "stdout")),
                asyncio.ensure_future(check_numbers(producers[1], "stderr")),
                *(asyncio.ensure_future(echo_until(process, stop)) for process in echoes),
                asyncio.ensure_future(run_commands()),
                asyncio.ensure_future(copy_files()),
            ]
            while proxy.cuts < CUTS:
                done, _ = await asyncio.wait(tasks, timeout=0.02)
                for task in done:
                    task.result()
            proxy.spare()
            stop.set()
            (tmp_path / "stop").touch()
            results = await asyncio.wait_for(asyncio.gather(*tasks), 60)
            assert env.connections > CUTS / 2
            assert all(results), results
            print(f"{proxy.cuts} cuts, {env.connections} connections, {results}")

    asyncio.run(run())


def test_two_hundred_cuts_under_load_lose_and_repeat_nothing_of_ordinary_code(
    proxy: CuttingProxy, tmp_path: Path
) -> None:
    stop = threading.Event()
    counted = "n=0; while [ ! -e stop ]; do seq $n $((n+2000)); n=$((n+2001)); done"
    with Environment.connect(proxy.url) as env:
        producer = env.spawn(["sh", "-c", counted], cwd=tmp_path)
        process = env.spawn(["cat"], stdin=PIPE)

        def check_numbers() -> int:
            assert producer.stdout is not None
            number = 0
            for line in producer.stdout:
                assert line == b"%d\n" % number, (line, number)
                number += 1
            assert producer.wait() == 0
            return number

        def echo() -> int:
            written = 0

            def write() -> None:
                nonlocal written
                assert process.stdin is not None
                while not stop.is_set():
                    lines = [b"%d:%s\n" % (n, b"x" * (n % 300)) for n in range(written, written + 50)]
                    written += len(lines)
                    process.stdin.write(b"".join(lines))
                process.stdin.close()

            writing = workers.submit(write)
            assert process.stdout is not None
            read = 0
            for line in process.stdout:
                assert line == b"%d:%s\n" % (read, b"x" * (read % 300)), line
                read += 1
            writing.result(30)
            assert read == written
            return read

        def run_commands() -> int:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    done = env.run(["cat"], input=b"%d" % number, capture_output=True)
                    assert done.stdout == b"%d" % number and done.returncode == 0
                except CallInterruptedError:
                    # The start could not be repeated; the output is never wrong.
                    pass
            return number

        def copy_files() -> int:
            content = os.urandom(3 << 20)
            rounds = 0
            while not stop.is_set():
                path = tmp_path / f"file{rounds % 2}"
                with env.open(path, "wb") as file:
                    file.write(content)
                assert path.read_bytes() == content
                with env.open(path) as file:
                    assert file.read() == content
                rounds += 1
            return rounds

        with ThreadPoolExecutor(8) as workers:
            proxy.cut_randomly(13, 2_000, 400_000)
            tasks = [workers.submit(work) for work in (check_numbers, echo, run_commands, copy_files)]
            try:
                while proxy.cuts < CUTS:
                    for task in futures.wait(tasks, 0.02, futures.FIRST_EXCEPTION).done:
                        task.result()
            finally:
                proxy.spare()
                stop.set()
                (tmp_path / "stop").touch()
            results = [task.result(60) for task in tasks]
        assert env.connections > CUTS / 2
        assert all(results), results


def test_cuts_lose_nothing_of_ordinary_code(proxy: CuttingProxy) -> None:
    with Environment.connect(proxy.url) as env:
        with env.spawn(["sh", "-c", "cat; seq 1 300000"], stdin=PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            proxy.cut_randomly(3, 20_000, 200_000)
            sent = b"".join(b"%d\n" % number for number in range(50_000))
            for start in range(0, len(sent), 50_000):
                process.stdin.write(sent[start : start + 50_000])
            process.stdin.close()
            received = process.stdout.read()
            proxy.spare()
        expected = sent + b"".join(b"%d\n" % number for number in range(1, 300_001))
        assert hashlib.sha256(received).digest() == hashlib.sha256(expected).digest()
        assert process.returncode == 0
        assert proxy.cuts > 5


def test_detached_process_whose_reader_stopped_needs_bounded_memory_over_cuts(
    proxy: CuttingProxy,
) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.connect(proxy.url) as env:
            process = await env.spawn(["yes"], detached=True)
            assert process.stdout is not None
            events = process._events
            await process.stdout.read(1)
            while not events.is_released:
                await asyncio.sleep(0.01)
            for connections in (2, 3):
                proxy.cut()
                while env.connections < connections:
                    await env.list()
                # Each response is behind what the server sent before it.
                for _ in range(50):
                    await env.list()
                    assert events.buffered < 8 << 20
            # The rest is followed again once there is room.
            read = 0
            while read < 4 << 20:
                try:
                    read += len(await asyncio.wait_for(process.stdout.read(1 << 20), 10))
                except OutputGapError:
                    pass
            await process.kill()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_calls_wait_while_the_server_cannot_be_reached(server: Server) -> None:
    async def run() -> None:
        proxy = CuttingProxy(server.address)
        async with await AsyncEnvironment.connect(proxy.url) as env:
            process = await env.spawn(["sh", "-c", "read line; echo got $line"], stdin=PIPE)
            assert process.stdin is not None and process.stdout is not None
            proxy.refuse(True)
            proxy.cut()
            writing = asyncio.ensure_future(process.stdin.write(b"it\n"))
            await asyncio.sleep(0.3)
            assert not writing.done()
            proxy.refuse(False)
            await asyncio.wait_for(writing, 10)
            assert await process.stdout.readline() == b"got it\n"
        proxy.stop()

    asyncio.run(run())


def test_call_that_is_cancelled_before_it_is_sent_has_no_effect(
    server: Server, tmp_path: Path
) -> None:
    async def run() -> None:
        proxy = CuttingProxy(server.address)
        async with await AsyncEnvironment.connect(proxy.url) as env:
            proxy.refuse(True)
            proxy.cut()
            while env._client._state == "connected":
                await asyncio.sleep(0.001)
            calls = [
                asyncio.ensure_future(env.run(["touch", str(tmp_path / "started")])),
                asyncio.ensure_future(env.write_file(tmp_path / "written", b"")),
            ]
            await asyncio.sleep(0.05)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            proxy.refuse(False)
            assert await env.read_directory(tmp_path) == []
            assert not env._client.processes
        proxy.stop()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())


def test_session_that_cannot_be_resumed_fails_everything_and_a_new_one_follows() -> None:
    async def run(server: Server, second: List[Server]) -> None:
        proxy = CuttingProxy(server.address)
        env = await AsyncEnvironment.connect(proxy.url)
        process = await env.spawn(["cat"], stdin=PIPE)
        assert process.stdout is not None and process.stdin is not None
        reading = asyncio.ensure_future(process.stdout.read())
        server.kill()
        second.append(Server())
        proxy.redirect(second[0].address)
        proxy.cut()
        with pytest.raises(SessionLostError):
            await asyncio.wait_for(reading, 10)
        with pytest.raises(SessionLostError):
            await process.wait()
        done = await env.run(["echo", "new"], capture_output=True)
        assert done.stdout == b"new\n"
        await env.close()
        proxy.stop()

    server, second = Server(), []
    try:
        asyncio.run(run(server, second))
    finally:
        for one in (server, *second):
            one.stop()


def test_server_that_stays_away_is_given_up_in_time() -> None:
    server = Server()
    env = Environment.connect(server.url, reconnect_timeout=0.5)
    process = env.spawn(["sleep", "60"])
    try:
        threading.Timer(0.1, server.kill).start()
        with pytest.raises(SessionLostError):
            process.wait()
    finally:
        env.close()
        server.stop()


def test_unexpected_error_of_a_reconnect_fails_everything(server: Server) -> None:
    async def run() -> None:
        proxy = CuttingProxy(server.address)
        async with await AsyncEnvironment.connect(proxy.url) as env:
            process = await env.spawn(["sleep", "60"])
            failure = RuntimeError("no more threads")

            async def fail() -> Link:
                raise failure

            env._client._connector.open = fail  # type: ignore[method-assign]
            proxy.cut()
            with pytest.raises(SessionLostError, match="no more threads") as lost:
                await process.wait()
            assert lost.value.__cause__ is failure
        proxy.stop()

    asyncio.run(asyncio.wait_for(run(), 10))


@pytest.fixture
def fast_keepalive(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the client notice a dead connection soon."""
    monkeypatch.setattr(_client, "_PING_SECONDS", 0.1)
    monkeypatch.setattr(_client, "_PONG_SECONDS", 1.5)
    yield


def test_program_that_stops_answering_is_given_up(
    fast_keepalive: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    links: List[ProgramLink] = []
    start = ProgramLink.__init__

    def init(self: ProgramLink, process: asyncio.subprocess.Process) -> None:
        start(self, process)
        links.append(self)

    monkeypatch.setattr(ProgramLink, "__init__", init)

    async def run() -> None:
        argv = [program(), "--listen", "stdio"]
        async with await AsyncEnvironment.program(argv, reconnect_timeout=5) as env:
            client = env._client
            pings: List[str] = []
            send = client.send_unanswered

            def record(method: str, params: Any) -> None:
                pings.append(method)
                send(method, params)

            client.send_unanswered = record  # type: ignore[method-assign]
            while len(pings) < 3:
                await asyncio.sleep(0.01)
            # The answers keep a silent connection alive.
            assert set(pings) == {"environment/status"} and env.connections == 1
            link = client._link
            assert isinstance(link, ProgramLink)
            os.kill(link._process.pid, signal.SIGSTOP)
            with pytest.raises(SessionLostError, match="does not answer"):
                await env.list()

    asyncio.run(asyncio.wait_for(run(), 30))
    # No transport is left to the collector, which would complain about the closed loop.
    assert len(links) == 2
    for link in links:
        assert link._process._transport.is_closing()  # type: ignore[attr-defined]


#: Passes the protocol on, but the requests slowly.
SLOW_UPLINK = """
import os, subprocess, sys, time
server = subprocess.Popen([sys.argv[1], "--listen", "stdio"], stdin=subprocess.PIPE)
while data := os.read(0, 1 << 16):
    server.stdin.write(data)
    server.stdin.flush()
    time.sleep(len(data) / (768 << 10))
"""


def test_connection_that_still_sends_is_alive(fast_keepalive: None, tmp_path: Path) -> None:
    async def run() -> None:
        argv = [sys.executable, "-c", SLOW_UPLINK, program()]
        async with await AsyncEnvironment.program(argv) as env:
            # One message, to which there is no response for three seconds.
            await env.write_file(tmp_path / "file", b"x" * (2 << 20))
            assert env.connections == 1

    asyncio.run(asyncio.wait_for(run(), 30))


def test_file_that_changed_behind_a_broken_connection_is_not_mixed(
    proxy: CuttingProxy, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * (3 << 20))

    async def run() -> None:
        async with await AsyncEnvironment.connect(proxy.url) as env:
            async with await env.open(path) as file:
                assert await file.read(10) == b"a" * 10
                path.write_bytes(b"b" * (3 << 20) + b"longer")
                proxy.cut()
                with pytest.raises(Exception, match="was changed"):
                    await file.read(10)

    asyncio.run(run())


def test_durable_process_goes_on_across_a_killed_server(tmp_path: Path) -> None:
    async def run(servers: List[Server]) -> None:
        proxy = CuttingProxy(servers[0].address)
        async with await AsyncEnvironment.connect(proxy.url) as env:
            process = await env.spawn(
                ["sh", "-c", "n=0; while read line; do n=$((n+1)); echo $n $line; done"],
                stdin=PIPE,
                durable=True,
            )
            assert process.stdin is not None and process.stdout is not None
            for number in range(1, 4):
                await process.stdin.write(b"line\n")
                assert await process.stdout.readline() == b"%d line\n" % number
                servers[-1].kill()
                servers.append(Server(*state))
                proxy.redirect(servers[-1].address)
                proxy.cut()
            await process.stdin.close()
            assert await process.stdout.read() == b""
            assert await process.wait() == 0
            assert env.connections >= 4
        proxy.stop()

    state = ["--state-dir", str(tmp_path / "state")]
    servers = [Server(*state)]
    try:
        asyncio.run(asyncio.wait_for(run(servers), 60))
    finally:
        for server in servers:
            server.stop()
