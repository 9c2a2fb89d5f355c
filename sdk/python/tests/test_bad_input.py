"""What goes wrong ends in a typed error, with bounded memory and nothing left running."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, Iterator, List

import pytest
from conftest import CuttingProxy, Server, is_running, run_script, wait_for
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from exec_server import (
    DEVNULL,
    PIPE,
    AsyncEnvironment,
    AuthenticationError,
    CalledProcessError,
    CallInterruptedError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    Environment,
    ExecServerError,
    HostError,
    OutputGapError,
    OutputLimitError,
    RemoteError,
    SessionLostError,
    StdinClosedError,
    TimeoutExpired,
    UnsupportedError,
    _client,
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# Connecting.


def test_server_that_is_gone_is_a_connect_error() -> None:
    with pytest.raises(ConnectError, match="cannot connect to ws://127.0.0.1"):
        Environment.connect(f"ws://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "127.0.0.1:1", "ws://", "unix:relative", "ws://u:p@127.0.0.1:1"]
)
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="invalid URL"):
        Environment.connect(url)


def test_token_is_not_sent_in_the_clear() -> None:
    with pytest.raises(ValueError, match="in the clear"):
        Environment.connect("ws://192.0.2.1:1", token="secret")
    with pytest.raises(ValueError, match="invalid token"):
        Environment.connect("ws://127.0.0.1:1", token="two words")


def test_wrong_and_missing_tokens_are_authentication_errors(tmp_path: Path) -> None:
    token = "a-capability-token-for-tests"
    digest = hashlib.sha256(token.encode()).hexdigest()
    server = Server("--ws-auth", "capability-token", "--ws-token-sha256", digest)
    try:
        for wrong in ("wrong", None):
            with pytest.raises(AuthenticationError, match="401"):
                Environment.connect(server.url, token=wrong)
        with Environment.connect(server.url, token=token) as env:
            assert env.run(["true"]).returncode == 0
    finally:
        server.stop()


def test_unix_socket_is_served(tmp_path: Path) -> None:
    server = Server(listen=f"unix://{tmp_path}/socket")
    try:
        for url in (f"unix://{tmp_path}/socket", f"unix:{tmp_path}/socket"):
            with Environment.connect(url) as env:
                assert env.run(["echo", "x"], capture_output=True).stdout == b"x\n"
    finally:
        server.stop()
    with pytest.raises(ConnectError):
        Environment.connect(f"unix://{tmp_path}/socket")


def test_certificates_are_checked(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    request += ["-nodes", "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    request += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(request, check=True, capture_output=True)
    arguments = ["--tls-cert", str(certificate), "--tls-key", str(key)]
    server = Server(*arguments, listen="wss://127.0.0.1:0")
    try:
        assert server.url.startswith("wss://")
        with pytest.raises(ConnectError, match="certificate is not trusted"):
            Environment.connect(server.url)
        with Environment.connect(server.url, tls=certificate) as env:
            data = os.urandom(1 << 20)
            assert env.run(["cat"], input=data, capture_output=True).stdout == data
    finally:
        server.stop()


def test_missing_program_is_a_connect_error() -> None:
    with pytest.raises(ConnectError, match="cannot start"):
        Environment.program(["/no/such/program"])
    with pytest.raises(ConnectError, match="the program ended"):
        Environment.program(["true"])


@pytest.mark.parametrize(
    "answer",
    [
        "no JSON",
        "[]",
        '{"id":0}',
        '{"id":0,"result":{}}',
        '{"id":0,"result":[]}',
        '{"id":0,"result":"x"}',
        '{"id":0,"result":{"sessionId":"s","sessionTtlMs":"x"}}',
        '{"id":0,"result":{"sessionId":"s","extensions":7}}',
        '{"id":0,"result":{"sessionId":"s","server":"x"}}',
        b"\x01\xff\xff\xff{}",
        '{"id":0,"error":{"code":-32600,"message":"no"}}',
    ],
)
def test_malformed_handshake_is_a_typed_error(answer: Any) -> None:
    def handle(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(answer)
        connection.recv(timeout=5)

    with serve(handle, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.socket.getsockname()[1]
            with pytest.raises(ExecServerError):
                Environment.connect(f"ws://127.0.0.1:{port}")
        finally:
            server.shutdown()
            thread.join()


def test_server_that_only_sends_malformed_messages_is_given_up() -> None:
    def handle(connection: ServerConnection) -> None:
        connection.recv()
        result = {"sessionId": "s", "extensions": [], "sessionTtlMs": 80_000}
        connection.send(json.dumps({"id": 0, "result": result}))
        connection.recv()
        connection.send('{"method": "process/output", "params": {"seq": "?"}}')
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            connection.recv(timeout=5)

    with serve(handle, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            env = Environment.connect(f"ws://127.0.0.1:{server.socket.getsockname()[1]}")
            with pytest.raises(SessionLostError, match="malformed"):
                env.list()
            env.close()
        finally:
            server.shutdown()
            thread.join()


# Arguments.


def test_invalid_arguments_are_refused(server: Server) -> None:
    with Environment.connect(server.url) as env:
        with pytest.raises(ValueError, match="the command is empty"):
            env.run([])
        with pytest.raises(ValueError, match="not UTF-8"):
            env.run([b"echo", b"\xff"])
        with pytest.raises(ValueError, match="not UTF-8"):
            env.run(["true"], env={"A": "\udcff"})
        with pytest.raises(ValueError, match="a path is empty"):
            env.read_file("")
        with pytest.raises(ValueError, match="invalid mode"):
            env.open("/x", "w")
        with pytest.raises(ValueError, match="either `glob` or `query`"):
            env.find("/")
        with pytest.raises(ValueError, match="exclude capture_output"):
            env.run(["true"], capture_output=True, stdout=PIPE)
        with pytest.raises(TypeError, match="a string"):
            env.run(["true"], shell=True)
        with pytest.raises(UnsupportedError):
            env.request("no/such/method")


def test_process_without_stdin_has_none(server: Server) -> None:
    with Environment.connect(server.url) as env:
        process = env.spawn(["cat"])
        assert process.stdin is None
        with pytest.raises(ValueError, match="stdin=PIPE"):
            process.communicate(b"x")
        assert process.wait() == 0


# Errors that subprocess code expects.


def test_errors_are_those_of_subprocess_and_of_files(server: Server, tmp_path: Path) -> None:
    with Environment.connect(server.url) as env:
        with pytest.raises(subprocess.CalledProcessError) as failed:
            env.run(["sh", "-c", "echo out; echo err >&2; exit 2"], capture_output=True, check=True)
        assert isinstance(failed.value, CalledProcessError)
        assert (failed.value.returncode, failed.value.stdout, failed.value.stderr) == (
            2,
            b"out\n",
            b"err\n",
        )
        with pytest.raises(subprocess.TimeoutExpired) as late:
            env.run(["sh", "-c", "echo early; sleep 60"], capture_output=True, timeout=1)
        assert isinstance(late.value, TimeoutExpired) and late.value.stdout == b"early\n"
        with pytest.raises(FileNotFoundError):
            env.read_file(tmp_path / "none")
        with pytest.raises(OSError) as refused:
            env.run(["/no/such/program"])
        assert isinstance(refused.value, HostError) and refused.value.code == -32603
        with env.spawn(["cat"], stdin=PIPE) as process:
            assert process.stdin is not None
            process._inner.stdin._closed = True  # type: ignore[union-attr]
            with pytest.raises(BrokenPipeError) as closed:
                process.stdin.write(b"x")
            assert isinstance(closed.value, StdinClosedError)
            process.kill()


def test_output_above_the_callers_limit_kills_the_command(server: Server) -> None:
    with Environment.connect(server.url) as env:
        with pytest.raises(OutputLimitError):
            env.run(["yes", "limit-of-a-test"], capture_output=True, max_output=100_000)
        wait_for(lambda: not is_running("limit-of-a-test"))


# Readers that stop.


@pytest.mark.parametrize("kind", ["ordinary", "detached"])
def test_endless_output_for_a_reader_that_stopped_needs_bounded_memory(
    server: Server, kind: str
) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            process = await env.spawn(["yes"], detached=kind == "detached")
            assert process.stdout is not None
            await process.stdout.read(1)
            await asyncio.sleep(0.5)
            assert process._events.buffered < 8 << 20
            # Others are not held up.
            done = await env.run(["echo", "x"], capture_output=True)
            assert done.stdout == b"x\n"
            read = 0
            while read < 16 << 20:
                try:
                    data = await asyncio.wait_for(process.stdout.read(1 << 20), 10)
                except OutputGapError:
                    assert kind == "detached"
                    continue
                read += len(data)
                assert data.strip(b"y\n") == b""
            assert process._events.buffered < 8 << 20
            await process.kill()

    asyncio.run(run())


def test_durable_process_with_a_reader_that_stopped_loses_nothing(tmp_path: Path) -> None:
    server = Server("--state-dir", str(tmp_path / "state"))

    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            command = "seq 1 4000000"
            process = await env.spawn(["sh", "-c", command], durable=True)
            assert process.stdout is not None
            first = await process.stdout.readline()
            await asyncio.sleep(0.5)
            assert process._events.buffered < 8 << 20
            digest = hashlib.sha256(first)
            async for chunk in process.stdout:
                digest.update(chunk)
            expected = hashlib.sha256(b"".join(b"%d\n" % n for n in range(1, 4_000_001)))
            assert digest.digest() == expected.digest()
            assert await process.wait() == 0

    try:
        asyncio.run(run())
    finally:
        server.stop()


# Older servers.


@pytest.fixture
def plain_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the client ask for nothing that the stock server does not know."""
    monkeypatch.setattr(_client, "_EXTENSIONS", [])
    yield


def test_server_without_extensions_is_enough(
    plain_client: None, server: Server, tmp_path: Path
) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            assert not env.extensions
            done = await env.run(["cat"], input=b"\xff\x00", capture_output=True)
            assert done.stdout == b"\xff\x00"
            await env.write_file(tmp_path / "x", b"\xff")
            assert await env.read_file(tmp_path / "x") == b"\xff"
            with pytest.raises(UnsupportedError):
                await env.metadata(tmp_path / "x", follow_symlinks=False)
            process = await env.spawn(["yes"])
            assert process.stdout is not None
            await process.stdout.read(1)
            await asyncio.sleep(0.3)
            # Nothing more is read from the connection.
            assert process._events.buffered < 8 << 20
            read = 0
            while read < 16 << 20:
                read += len(await asyncio.wait_for(process.stdout.read(1 << 20), 10))
            process.discard_output()
            await process.kill()

    asyncio.run(run())


def test_calls_on_a_server_without_extensions_pass_unread_output(
    plain_client: None, server: Server
) -> None:
    async def run() -> None:
        env = await AsyncEnvironment.connect(server.url)
        client = env._client
        process = await env.spawn(["yes"])
        # Without a reader, and without a call that waits, nothing is read.
        while client._link is not None and not client._link.is_paused:
            await asyncio.sleep(0.01)
        assert process._events.buffered < 8 << 20
        done = await asyncio.wait_for(env.run(["echo", "x"], capture_output=True), 10)
        assert done.stdout == b"x\n"
        await asyncio.wait_for(process.kill(), 10)
        await env.spawn(["yes"])
        endless = await env.spawn(["yes"])
        while client._link is not None and not client._link.is_paused:
            await asyncio.sleep(0.01)
        started = asyncio.get_running_loop().time()
        await env.close()
        assert asyncio.get_running_loop().time() - started < _client._CLOSE_SECONDS
        # The last events may arrive before the connection ends.
        assert endless._events.is_closed or endless._events.failure is not None

    asyncio.run(asyncio.wait_for(run(), 60))


def test_unread_output_is_bounded_while_calls_wait(
    plain_client: None, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_client, "_MAX_AWAITED_BUFFERED_BYTES", 16 << 20)

    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            process, waited = await env.spawn(["yes"]), await env.spawn(["sleep", "4711476"])
            params = {"processId": waited.id, "until": "exited"}
            waiting = asyncio.ensure_future(env.request("process/wait", params))
            link = env._client._link
            while process._events.buffered < 16 << 20:
                await asyncio.sleep(0.01)
            assert link is not None and link.is_paused
            assert process._events.buffered < 20 << 20
            process.discard_output()
            await waited.kill()
            await waiting

    asyncio.run(asyncio.wait_for(run(), 60))


# Broken connections in every call.

CALLS: Dict[str, Callable[[AsyncEnvironment, Path], Awaitable[Any]]] = {
    "run": lambda env, path: env.run(["sleep", "0.05"]),
    "run with input": lambda env, path: env.run(["cat"], input=b"x" * 300_000, capture_output=True),
    "spawn": lambda env, path: env.spawn(["true"]),
    "spawn detached": lambda env, path: env.spawn(["true"], detached=True),
    "list": lambda env, path: env.list(),
    "read_file": lambda env, path: env.read_file(path / "big"),
    "write_file": lambda env, path: env.write_file(path / "new", b"x" * 100_000),
    "write_file by blocks": lambda env, path: env.write_file(path / "new2", b"x" * (9 << 20)),
    "open": lambda env, path: env.open(path / "big"),
    "download": lambda env, path: env.download(path / "big", path / "copy"),
    "upload": lambda env, path: env.upload(path / "big", path / "copy2"),
    "metadata": lambda env, path: env.metadata(path),
    "set_metadata": lambda env, path: env.set_metadata(path / "big", mode=0o644),
    "exists": lambda env, path: env.exists(path),
    "make_directory": lambda env, path: env.make_directory(path / "d"),
    "remove": lambda env, path: env.remove(path / "gone", missing_ok=True),
    "rename": lambda env, path: env.rename(path / "none", path / "x"),
    "copy": lambda env, path: env.copy(path / "big", path / "big2"),
    "symlink": lambda env, path: env.symlink("big", path / f"l{random.random()}"),
    "realpath": lambda env, path: env.realpath(path),
    "read_directory": lambda env, path: env.read_directory(path),
    "walk": lambda env, path: env.walk(path),
    "search": lambda env, path: env.search("x", path),
    "find": lambda env, path: env.find(path, glob="*"),
    "watch": lambda env, path: env.watch(path),
    "attach": lambda env, path: env.attach("no-such-process"),
    "request": lambda env, path: env.request("environment/status"),
}


@pytest.mark.parametrize("name", CALLS)
def test_cut_in_a_call_ends_in_a_result_or_a_typed_error(
    name: str, proxy: CuttingProxy, tmp_path: Path
) -> None:
    (tmp_path / "big").write_bytes(os.urandom(2 << 20))

    async def run() -> None:
        async with await AsyncEnvironment.connect(proxy.url) as env:
            for pause in (0.0, 0.001, 0.004, 0.02):
                call = asyncio.ensure_future(CALLS[name](env, tmp_path))
                await asyncio.sleep(pause)
                proxy.cut()
                try:
                    await asyncio.wait_for(call, 15)
                except (CallInterruptedError, RemoteError):
                    pass
            # This call finds the last cut; a start could not be repeated.
            await env.list()
            done = await env.run(["echo", "fine"], capture_output=True)
            assert done.stdout == b"fine\n"

    asyncio.run(run())


# Cancelled calls.


def test_cancelled_calls_leave_nothing_behind(server: Server, tmp_path: Path) -> None:
    source = random.Random(5)
    marker = f"8{source.randint(10**6, 10**7)}"

    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            reader = await env.spawn(["cat"], stdin=PIPE)
            assert reader.stdin is not None and reader.stdout is not None
            received = b""
            for number in range(60):
                calls = [
                    asyncio.ensure_future(env.run(["sleep", marker])),
                    asyncio.ensure_future(env.spawn(["sleep", marker])),
                    asyncio.ensure_future(env.open("/etc/passwd")),
                    asyncio.ensure_future(env.watch(tmp_path)),
                ]
                reading = asyncio.ensure_future(reader.stdout.readline())
                await asyncio.sleep(source.random() * 0.006)
                for call in (*calls, reading):
                    call.cancel()
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                for outcome in outcomes:
                    if isinstance(outcome, asyncio.CancelledError):
                        continue
                    assert not isinstance(outcome, BaseException), outcome
                    if hasattr(outcome, "kill"):
                        await outcome.kill()
                    else:
                        await outcome.close()
                try:
                    received += await reading
                except asyncio.CancelledError:
                    pass
                await reader.stdin.write(b"%d\n" % number)
            await reader.stdin.close()
            received += await reader.stdout.read()
            assert received == b"".join(b"%d\n" % number for number in range(60))
            deadline = asyncio.get_running_loop().time() + 15
            while any(info.running for info in await env.list() if marker in info.argv):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.02)

    asyncio.run(run())
    wait_for(lambda: not is_running(marker))


def test_cancelled_read_of_a_file_keeps_its_position(server: Server, tmp_path: Path) -> None:
    content = os.urandom(8 << 20)
    (tmp_path / "file").write_bytes(content)

    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            async with await env.open(tmp_path / "file") as file:
                blocked, later = asyncio.Event(), asyncio.Event()
                read_block = file.read_block

                async def read_slowly(offset: int, size: int) -> Any:
                    if offset >= 4 << 20:
                        blocked.set()
                        await later.wait()
                    return await read_block(offset, size)

                file.read_block = read_slowly  # type: ignore[method-assign, assignment]
                assert await file.read(10) == content[:10]
                reading = asyncio.ensure_future(file.read())
                await blocked.wait()
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
                later.set()
                assert await file.read() == content[10:]

    asyncio.run(asyncio.wait_for(run(), 20))


# Event loops and threads that end.


def test_event_loop_that_ends_without_a_close_leaves_nothing_running(server: Server) -> None:
    kept = []

    async def run() -> None:
        env = await AsyncEnvironment.connect(server.url)
        kept.append(env)
        await env.spawn(["sleep", "4711471"])

    asyncio.run(run())
    wait_for(lambda: not is_running("4711471"))
    with pytest.raises(ClosedError):
        asyncio.run(kept[0].run(["true"]))


def test_environment_of_another_loop_is_refused(server: Server) -> None:
    loop = asyncio.new_event_loop()
    try:
        env = loop.run_until_complete(AsyncEnvironment.connect(server.url))

        async def use() -> None:
            with pytest.raises(ClosedError, match="another event loop"):
                await env.run(["true"])

        asyncio.run(use())
        loop.run_until_complete(env.close())
    finally:
        loop.close()


def test_closed_environment_refuses_calls_and_fails_waiting_ones(server: Server) -> None:
    env = Environment.connect(server.url)
    process = env.spawn(["sleep", "4711472"])
    failures = []

    def wait() -> None:
        try:
            process.wait()
        except ExecServerError as error:
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    env.close()
    waiting.join(10)
    assert not waiting.is_alive()
    env.close()
    with pytest.raises(ClosedError):
        env.run(["true"])
    with pytest.raises(ClosedError):
        env.read_file("/etc/passwd")
    wait_for(lambda: not is_running("4711472"))


def test_ctrl_c_interrupts_a_call_and_kills_its_command(server: Server) -> None:
    script = """
        import sys, threading, time
        from exec_server import Environment
        with Environment.connect(sys.argv[1]) as env:
            timer = threading.Timer(0.3, lambda: print("running", flush=True))
            timer.start()
            try:
                env.run(["sleep", "4711473"])
            except KeyboardInterrupt:
                print("interrupted", env.run(["echo", "on"], capture_output=True).stdout)
    """
    code, out = run_script(script, server.url, interrupt=True)
    assert code == 0 and "interrupted b'on\\n'" in out, out
    wait_for(lambda: not is_running("4711473"))


def test_ctrl_c_that_another_thread_receives_interrupts_a_call(server: Server) -> None:
    script = """
        import signal, sys, threading
        from exec_server import Environment
        def interrupt():
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        with Environment.connect(sys.argv[1]) as env:
            threading.Timer(0.2, interrupt).start()
            try:
                env.run(["sleep", "4711475"])
            except KeyboardInterrupt:
                print("interrupted")
    """
    code, out = run_script(script, server.url)
    assert (code, out) == (0, "interrupted\n")


def test_program_that_ends_without_a_close_leaves_nothing_running(server: Server) -> None:
    script = """
        import sys
        from exec_server import Environment
        def spawn():
            # Drops the environment and the process.
            return Environment.connect(sys.argv[1]).spawn(["sleep", "4711474"]).returncode
        print(spawn())
    """
    code, out = run_script(script, server.url)
    assert (code, out) == (0, "None\n")
    wait_for(lambda: not is_running("4711474"))


# Sizes.


def test_file_of_four_gibibytes_is_read_and_written_at_its_end(
    server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "big"
    with Environment.connect(server.url) as env:
        with env.open(path, "wb") as file:
            file.seek(4 << 30)
            file.write(b"the end")
        assert env.metadata(path).size == (4 << 30) + 7
        with env.open(path) as file:
            file.seek(-9, os.SEEK_END)
            assert file.read() == b"\0\0the end"
        with pytest.raises(RemoteError):
            env.read_file(path)


#: Size of the streamed file. Four gibibytes take up to a minute.
STREAMED_BYTES = (4 << 30) if os.environ.get("EXEC_SERVER_TEST_LARGE") else (512 << 20)
STREAMED_MARKS = {0: b"begin", STREAMED_BYTES // 2 + 12345: b"middle", STREAMED_BYTES - 3: b"end"}


def test_large_file_is_streamed_in_bounded_memory(server: Server, tmp_path: Path) -> None:
    source, copy, pipe = tmp_path / "source", tmp_path / "copy", tmp_path / "pipe"
    with source.open("wb") as file:
        # Sparse, so that it takes no space.
        file.truncate(STREAMED_BYTES)
        for offset, mark in STREAMED_MARKS.items():
            file.seek(offset)
            file.write(mark)
    os.mkfifo(pipe)
    found: List[bytes] = []

    def receive() -> None:
        with pipe.open("rb", buffering=0) as file:
            while block := file.read(1 << 20):
                found.append(block.strip(b"\0"))

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    script = """
        import sys
        from pathlib import Path
        from exec_server import Environment

        def peak():
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) << 10

        url, source, copy, pipe = sys.argv[1:]
        with Environment.connect(url) as env:
            env.run(["true"])
            before = peak()
            sizes = env.download(source, pipe), env.upload(source, copy)
            print(*sizes, peak() - before)
    """
    arguments = [str(path) for path in (source, copy, pipe)]
    code, out = run_script(script, server.url, *arguments, seconds=STREAMED_BYTES >> 22)
    assert code == 0, out
    received, sent, growth = map(int, out.split())
    assert received == sent == copy.stat().st_size == STREAMED_BYTES
    assert growth < 96 << 20
    receiver.join(10)
    assert b"".join(found) == b"".join(STREAMED_MARKS.values())
    with copy.open("rb") as file:
        for offset, mark in STREAMED_MARKS.items():
            file.seek(offset - offset % 4096)
            assert file.read(8192).strip(b"\0") == mark
    copy.unlink()


def test_process_is_killed_while_its_input_takes_all_calls(server: Server) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            process = await env.spawn(["sleep", "4711477"], stdin=PIPE)
            assert process.stdin is not None
            # The first ones fill the queue of the server.
            writes = [
                asyncio.ensure_future(process.stdin._write(b"x" * (256 << 10 if n < 64 else 1)))
                for n in range(_client._MAX_CALLS + 64)
            ]
            while not env._client._slots.locked():
                await asyncio.sleep(0.01)
            # Others wait for a slot.
            other = asyncio.ensure_future(env.list())
            await asyncio.wait_for(process.kill(), 20)
            await process.wait()
            await asyncio.gather(*writes, return_exceptions=True)
            await other

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_thousand_processes_run_at_once(server: Server) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            processes = await asyncio.gather(
                *(env.spawn(["cat"], stdin=PIPE, stderr=DEVNULL) for _ in range(1000))
            )
            assert len([info for info in await env.list() if info.running]) == 1000

            async def use(number: int) -> None:
                out, _ = await processes[number].communicate(b"%d" % number)
                assert out == b"%d" % number

            await asyncio.gather(*map(use, range(1000)))

    asyncio.run(run())


def test_lost_session_is_a_connection_error() -> None:
    assert issubclass(ConnectionLostError, ConnectionError)


# Handles that are dropped.


def test_process_whose_handle_is_dropped_is_not_paused(server: Server, tmp_path: Path) -> None:
    command = ["sh", "-c", "seq 1 1000000; touch finished; cat"]

    async def run() -> None:
        async with await AsyncEnvironment.connect(server.url) as env:
            await env.spawn(command, cwd=tmp_path, stdin=PIPE)
            while not (tmp_path / "finished").exists():
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(run(), 20))
    (tmp_path / "finished").unlink()
    with Environment.connect(server.url) as env:
        for is_text in (False, True):
            env.spawn(command, cwd=tmp_path, stdin=PIPE, text=is_text)
        wait_for(lambda: (tmp_path / "finished").exists())
        # Dropping the handle does not end the input either.
        assert len([info for info in env.list() if info.running]) == 2
