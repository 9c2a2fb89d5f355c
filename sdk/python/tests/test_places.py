"""Environments on this machine and behind programs, and where output goes."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

import pytest
from conftest import Server, program, wait_for

from exec_server import (
    DEVNULL,
    PIPE,
    STDOUT,
    AsyncEnvironment,
    AuthenticationError,
    ConnectError,
    Environment,
    SessionLostError,
    find_program,
)

STDIO = ["--listen", "stdio"]


@pytest.fixture
def own_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for a background server of the test, which is ended afterwards."""
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("EXEC_SERVER_SOCKET", str(directory / "server.sock"))
    monkeypatch.setenv("EXEC_SERVER", program())
    monkeypatch.delenv("EXEC_SERVER_ENV", raising=False)
    yield directory / "server.sock"
    if (directory / "server.sock").exists():
        with Environment.connect(f"unix://{directory}/server.sock") as env:
            pid = env.request("server/status")["osPid"]
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_local_starts_the_server_of_this_machine_and_joins_it(
    own_socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VARIABLE_OF_A_TEST", "seen")
    with Environment.local() as first, Environment.local() as second:
        script = "pwd; echo $VARIABLE_OF_A_TEST"
        done = first.run(script, shell=True, capture_output=True, text=True)
        assert done.stdout == f"{tmp_path}\nseen\n"
        second.write_file("relative", b"x")
        assert (tmp_path / "relative").read_bytes() == b"x"
        status = [env.request("server/status")["osPid"] for env in (first, second)]
        assert status[0] == status[1]


def test_local_refuses_a_directory_that_others_can_use(own_socket: Path) -> None:
    with Environment.local():
        pass
    own_socket.parent.chmod(0o755)
    try:
        with pytest.raises(ConnectError, match="mode 0700"):
            Environment.local()
    finally:
        own_socket.parent.chmod(0o700)


def test_program_is_found_or_its_absence_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EXEC_SERVER", "/some/where")
    assert find_program() == "/some/where"
    monkeypatch.delenv("EXEC_SERVER")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConnectError, match="EXEC_SERVER"):
        find_program()
    (tmp_path / "exec-server").symlink_to(program())
    assert find_program() == str(tmp_path / "exec-server")


def test_program_on_stdio_runs_commands_and_moves_files(tmp_path: Path) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.program([program(), *STDIO]) as env:
            assert "binaryData" not in env.extensions
            data = os.urandom(3 << 20)
            done = await env.run(["cat"], input=data, capture_output=True)
            assert done.stdout == data
            await env.write_file(tmp_path / "x", data)
            assert await env.read_file(tmp_path / "x") == data
            async with await env.open(tmp_path / "x") as file:
                assert await file.read() == data
            await asyncio.gather(*(env.run(["true"]) for _ in range(20)))

    asyncio.run(run())


def test_program_that_dies_takes_its_session_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"echo $$ >> {pids}; exec {program()} --listen stdio"
    with Environment.program(["sh", "-c", script]) as env:
        process = env.spawn(["sleep", "60"])
        os.kill(int(pids.read_text().split()[0]), signal.SIGKILL)
        with pytest.raises(SessionLostError, match="unknown session"):
            process.wait()
        # The next call starts the program again.
        assert env.run(["echo", "x"], capture_output=True).stdout == b"x\n"
    for pid in pids.read_text().split():
        wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_output_that_is_not_captured_goes_where_subprocess_sends_it(
    server: Server, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    script = "echo out; echo err >&2"
    with Environment.connect(server.url) as env:
        env.run(["sh", "-c", script])
        assert capfdbinary.readouterr() == (b"out\n", b"err\n")
        env.run(["sh", "-c", script], stdout=DEVNULL, stderr=DEVNULL)
        assert capfdbinary.readouterr() == (b"", b"")
        with open(tmp_path / "out", "wb") as file:
            env.run(["sh", "-c", script], stdout=file, stderr=file.fileno())
        assert sorted((tmp_path / "out").read_bytes().split()) == [b"err", b"out"]
        done = env.run(["sh", "-c", script], stdout=PIPE, stderr=STDOUT)
        assert sorted(done.stdout.split()) == [b"err", b"out"] and done.stderr is None
        memory = io.BytesIO()
        env.run(["sh", "-c", script], stdout=memory, stderr=DEVNULL)
        assert memory.getvalue() == b"out\n"


def test_streams_are_text_if_asked_for(server: Server) -> None:
    with Environment.connect(server.url) as env:
        done = env.run(["cat"], input="grüße\n", text=True, capture_output=True)
        assert done.stdout == "grüße\n"
        with env.spawn(["cat"], stdin=PIPE, encoding="latin-1") as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("ü\n")
            assert process.stdout.readline() == "ü\n"
            out, err = process.communicate("more")
            assert (out, err) == ("more", "")
        assert env.run(["printf", "\\377"], capture_output=True, errors="replace").stdout == "�"


def test_communicate_again_after_a_timeout_loses_nothing(server: Server) -> None:
    script = "cat; echo more; exec sleep 60"
    with Environment.connect(server.url) as env:
        process = env.spawn(["sh", "-c", script], stdin=PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired) as late:
            process.communicate("input\n", timeout=0.5)
        assert "input\nmore\n".startswith(late.value.output)
        process.kill()
        assert process.communicate() == ("input\nmore\n", "")
        assert process.returncode == 137


def test_threads_share_an_environment(server: Server) -> None:
    with Environment.connect(server.url) as env:

        def work(number: int) -> bool:
            with env.spawn(["cat"], stdin=PIPE) as process:
                assert process.stdin is not None and process.stdout is not None
                for count in range(10):
                    line = b"%d %d\n" % (number, count)
                    process.stdin.write(line)
                    assert process.stdout.readline() == line
            return process.returncode == 0

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(16)))


def test_completed_process_is_that_of_subprocess(server: Server) -> None:
    with Environment.connect(server.url) as env:
        done = env.run(["echo", "x"], capture_output=True)
        assert isinstance(done, subprocess.CompletedProcess)
        assert done.args == ["echo", "x"]
        assert done.status.usage is not None and done.status.cause == "exit"
        process = env.spawn(["cat"], stdin=PIPE)
        assert process.poll() is None and process.pid is not None
        assert f"/proc/{process.pid}" and Path(f"/proc/{process.pid}").exists()
        process.kill()
        assert process.wait() == 137 and process.poll() == 137
        assert "exited with 137" in repr(process)


def test_machine_behind_a_hub_is_reached_through_the_program(tmp_path: Path) -> None:
    home = {**os.environ, "EXEC_SERVER_HOME": str(tmp_path), "HOME": str(tmp_path)}
    token_file = tmp_path / "token"
    roles = ["--role", "executor", "--role", "harness"]
    create = [program(), "hub", "token", "create", "--name", "t", *roles, "--out", str(token_file)]
    subprocess.run(create, env=home, check=True, capture_output=True)
    children = []

    def start(*arguments: str) -> str:
        child = subprocess.Popen(
            [program(), *arguments], env=home, stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        children.append(child)
        assert child.stdout is not None
        return child.stdout.readline().strip()

    try:
        url = start("hub", "--listen", "127.0.0.1:0")
        remote = ["--environment-id", "box-7", "--remote-token-file", str(token_file)]
        assert start("--remote", url, *remote) == "online box-7"
        token = token_file.read_text()
        with Environment.hub(url, "box-7", token=token, program=program()) as env:
            data = os.urandom(1 << 20)
            assert env.run(["cat"], input=data, capture_output=True).stdout == data
            env.write_file(tmp_path / "x", b"through the hub")
            assert (tmp_path / "x").read_bytes() == b"through the hub"
        with pytest.raises(AuthenticationError):
            Environment.hub(url, "box-7", token="exh_wrong", program=program())
    finally:
        for child in reversed(children):
            child.terminate()
            child.wait(10)
            assert child.stdout is not None
            child.stdout.close()


def test_hub_without_a_scheme_or_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="https://"):
        Environment.hub("hub.example", "box", token="t", program=program())
    with pytest.raises(ValueError, match="token"):
        Environment.hub("https://hub.example", "box", token=" ", program=program())
