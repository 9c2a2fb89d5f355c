"""What is special about ordinary code: files that read ahead, interrupts, and forks."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict

import pytest
from conftest import Server, is_running, program, run_script, wait_for

from exec_server import PIPE, Environment, OutputLimitError, TimeoutExpired, _loop_thread

# Files that read ahead.


@pytest.mark.parametrize("is_text", [False, True])
def test_communicate_returns_what_the_files_have_read_ahead(
    server: Server, tmp_path: Path, is_text: bool
) -> None:
    # A character is cut where the read ahead ends.
    script = r"""
        printf 'first\nsecond \342\202'; printf 'wrong\nmore' >&2
        until [ -e go ]; do sleep 0.01; done
        printf '\254\r\n'
    """
    with Environment.connect(server.url) as env:
        process = env.spawn(["sh", "-c", script], cwd=tmp_path, text=is_text)
        assert process.stdout is not None and process.stderr is not None
        first, wrong = process.stdout.readline(), process.stderr.readline()
        with pytest.raises(TimeoutExpired) as early:
            process.communicate(timeout=0.1)
        (tmp_path / "go").touch()
        out, err = process.communicate()
        assert process.communicate() == (out, err)
        assert not process.stdout.read() and not process.stderr.read()
    if is_text:
        assert (first, wrong) == ("first\n", "wrong\n")
        assert early.value.output.startswith("second ") and early.value.stderr == "more"
        # As `read` returns it.
        assert (out, err) == ("second €\n", "more")
    else:
        assert (first, wrong) == (b"first\n", b"wrong\n")
        assert early.value.output == b"second \xe2\x82" and early.value.stderr == b"more"
        assert (out, err) == ("second €\r\n".encode(), b"more")


@pytest.mark.parametrize("is_text", [False, True])
def test_read_ahead_counts_for_the_limit_of_communicate(server: Server, is_text: bool) -> None:
    script = "printf 'line\\n%0100d' 0; exec sleep 4711475"
    with Environment.connect(server.url) as env:
        process = env.spawn(["sh", "-c", script], text=is_text)
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(OutputLimitError):
            process.communicate(max_output=99, timeout=10)
        wait_for(lambda: not is_running("4711475"))


# Interrupts.


class LateInterrupt:
    """A lock whose second acquisition, the wait for a result, is interrupted once it has it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def acquire(self, timeout: float = -1) -> bool:
        acquired = self._lock.acquire(timeout=timeout)
        self._count += 1
        if self._count == 2:
            raise KeyboardInterrupt
        return acquired

    def release(self) -> None:
        self._lock.release()


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Makes a call that Ctrl-C interrupts when its result has arrived."""

    def interrupt(call: Callable[[], Any]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(_loop_thread, "_thread", SimpleNamespace(allocate_lock=LateInterrupt))
            started = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                call()
            assert time.monotonic() - started < 5

    return interrupt


def test_interrupted_read_of_a_process_loses_nothing(server: Server, interrupt: Any) -> None:
    with Environment.connect(server.url) as env:
        process = env.spawn(["sh", "-c", "seq 1 100; read line; seq 101 200"], stdin=PIPE)
        assert process.stdin is not None and process.stdout is not None
        interrupt(process.stdout.read1)  # type: ignore[attr-defined]
        assert process.stdout.readline() == b"1\n"
        process.stdin.write(b"\n")
        interrupt(process.stdout.raw.readall)  # type: ignore[attr-defined]
        expected = b"".join(b"%d\n" % number for number in range(2, 201))
        assert process.stdout.read() == expected
        process = env.spawn(["echo", "x"])
        assert process.stdout is not None
        interrupt(process.stdout.read1)  # type: ignore[attr-defined]
        assert process.communicate() == (b"x\n", b"")


def test_interrupted_file_is_read_and_written_once(
    server: Server, interrupt: Any, tmp_path: Path
) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "file").write_bytes(content)
    with Environment.connect(server.url) as env:
        with env.open(tmp_path / "file") as file:
            interrupt(lambda: file.read(10))
            assert file.read() == content
        with env.open(tmp_path / "copy", "wb") as copy:
            copy.write(content)
            interrupt(copy.flush)
            copy.write(b"end")
        assert (tmp_path / "copy").read_bytes() == content + b"end"


def test_interrupted_reads_of_tunnels_and_watches_lose_nothing(
    server: Server, interrupt: Any, tmp_path: Path
) -> None:
    with Environment.connect(server.url) as env, env.listen() as listener:
        with env.open_tunnel(listener.port) as there:
            interrupt(listener.accept)
            with listener.accept() as here:
                there.write(b"hello")
                interrupt(here.read)
                assert here.read(2) == b"he"
                there.write_eof()
                interrupt(here.read_all)
                assert here.read_all() == b"llo"
        with env.watch(tmp_path) as watch:
            (tmp_path / "new").touch()
            interrupt(lambda: next(watch))
            assert next(watch).changes[0].path == str(tmp_path / "new")


def test_interrupted_calls_leave_no_handles_behind(
    server: Server, interrupt: Any, tmp_path: Path
) -> None:
    with Environment.connect(server.url) as env:
        client = env._inner._client
        interrupt(lambda: env.spawn(["sleep", "4711478"]))
        interrupt(lambda: env.watch(tmp_path))
        interrupt(env.listen)
        assert not client.watches and not client.listeners
        wait_for(lambda: not is_running("4711478"))


# Forks.

PLACES: Dict[str, Callable[[Server], str]] = {
    "url": lambda server: f"Environment.connect({server.url!r})",
    "program": lambda server: f"Environment.program([{program()!r}, '--listen', 'stdio'])",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("place", PLACES)
def test_child_of_a_fork_refuses_calls_and_ends_at_once(server: Server, place: str) -> None:
    script = f"""
        import os, sys, warnings
        from exec_server import ClosedError, Environment
        warnings.simplefilter("ignore", DeprecationWarning)
        env = {PLACES[place](server)}
        process = env.spawn(["sh", "-c", "echo early; read line; echo $line"], stdin=-1)
        file = env.open("/etc/passwd")
        if os.fork() == 0:
            for call in (
                lambda: env.run(["true"]), process.wait, process.stdout.readline, file.read
            ):
                try:
                    call()
                except ClosedError as error:
                    assert "forked" in str(error), error
                else:
                    raise AssertionError("the call did not fail")
            file.close()
            process.stdin.close()
            # What the collector does to a connection that is dropped.
            link = env._inner._client._link
            (link._transport if hasattr(link, "_transport") else link._process._transport).close()
            # One of its own works.
            with {PLACES[place](server)} as own:
                assert own.run(["echo", "x"], capture_output=True).stdout == b"x\\n"
            print("child", flush=True)
            # Runs all finalizers.
            sys.exit()
        pid, status = os.wait()
        assert status == 0, status
        process.stdin.write(b"late\\n")
        assert process.stdout.read() == b"early\\nlate\\n"
        assert env.connections == 1
        print("parent")
    """
    code, out = run_script(script)
    assert (code, out) == (0, "child\nparent\n")
