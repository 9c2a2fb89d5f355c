"""What all tests share: a real server, and a proxy that can cut its connections."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, List, Optional, Tuple

import pytest

ROOT = Path(__file__).resolve().parents[3]

#: A stock server. Then only the cases that it should pass run.
STOCK_URL = os.environ.get("EXEC_SERVER_TEST_STOCK_URL")


def program() -> str:
    """Returns the path of the program under test."""
    return os.environ.get("EXEC_SERVER_TEST_PROGRAM", str(ROOT / "target/debug/exec-server"))


def pytest_configure() -> None:
    """Refuses to run without a program."""
    if STOCK_URL is None and not os.access(program(), os.X_OK):
        text = f"no program `{program()}`: build it, or name it in EXEC_SERVER_TEST_PROGRAM"
        raise pytest.UsageError(text)


class Server:
    """A server of its own for some tests."""

    def __init__(self, *arguments: str, listen: str = "ws://127.0.0.1:0") -> None:
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith("EXEC_SERVER_")
        }
        self.process = subprocess.Popen(
            [program(), "--listen", listen, *arguments],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=variables,
            cwd="/",
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the server did not start"

    @property
    def address(self) -> Tuple[str, int]:
        host, port = self.url.split("//", 1)[1].rsplit(":", 1)
        return host, int(port)

    def kill(self) -> None:
        """Ends the server without a chance to say so."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class StockServer(Server):
    """A stock server that is running already: only `test_cases.py` is for it."""

    def __init__(self, url: str) -> None:
        self.url = url


class CuttingProxy:
    """A TCP proxy that cuts connections on demand, or after random amounts of data."""

    def __init__(self, upstream: Tuple[str, int]) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._lock = threading.Lock()
        self._pairs: List[Tuple[socket.socket, socket.socket]] = []
        self._budget: Optional[Callable[[], int]] = None
        self._stopped = False
        self._refused = False
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Cuts all connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self.cuts += len(pairs)
        for pair in pairs:
            for end in pair:
                _abort(end)

    def cut_randomly(self, seed: int, low: int, high: int) -> None:
        """Cuts all connections, and each later one after a random number of bytes."""
        source = random.Random(seed)
        self._budget = lambda: source.randint(low, high)
        self.cut()

    def refuse(self, refused: bool) -> None:
        """Drops new connections at once, or serves them again."""
        self._refused = refused

    def redirect(self, upstream: Tuple[str, int]) -> None:
        """Passes new connections to another server."""
        self._upstream = upstream

    def spare(self) -> None:
        """Cuts no further connections."""
        self._budget = None

    def stop(self) -> None:
        self._stopped = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._stopped:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refused:
                client.close()
                continue
            try:
                server = socket.create_connection(self._upstream, timeout=10)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (client, server)
            with self._lock:
                self._pairs.append(pair)
            left = [self._budget() if self._budget is not None else None]
            for source, target in (pair, pair[::-1]):
                threading.Thread(
                    target=self._forward, args=(source, target, pair, left), daemon=True
                ).start()

    def _forward(
        self,
        source: socket.socket,
        target: socket.socket,
        pair: Tuple[socket.socket, socket.socket],
        left: "List[Optional[int]]",
    ) -> None:
        try:
            while True:
                data = source.recv(16384)
                if not data:
                    break
                if left[0] is not None:
                    if len(data) >= left[0]:
                        target.sendall(data[: left[0]])
                        with self._lock:
                            if pair in self._pairs:
                                self.cuts += 1
                        break
                    left[0] -= len(data)
                target.sendall(data)
        except OSError:
            pass
        with self._lock:
            if pair in self._pairs:
                self._pairs.remove(pair)
        for end in pair:
            _abort(end)


def _abort(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that all tests share; sessions separate them."""
    if STOCK_URL is not None:
        yield StockServer(STOCK_URL)
        return
    server = Server("--session-ttl", "20", "--process-retention", "20")
    yield server
    server.stop()


@pytest.fixture
def proxy(server: Server) -> Iterator[CuttingProxy]:
    """A proxy in front of the shared server."""
    proxy = CuttingProxy(server.address)
    yield proxy
    proxy.stop()


def wait_for(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition does not hold in time"
        time.sleep(0.01)


def is_running(marker: str) -> bool:
    """Returns whether a process with this text in its command line runs on this machine."""
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            try:
                command = (directory / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in command:
                return True
    return False


def run_script(
    script: str, *arguments: str, interrupt: bool = False, seconds: float = 20
) -> "tuple[int, str]":
    """Runs a Python program, and with `interrupt` sends SIGINT once it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Whoever runs the tests may ignore it, and Python then has no KeyboardInterrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    watchdog = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    try:
        out = process.stdout.readline()
        if interrupt:
            process.send_signal(signal.SIGINT)
        rest, _ = process.communicate()
    finally:
        watchdog.cancel()
    return process.returncode, out + rest
