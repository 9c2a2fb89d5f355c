"""A TCP proxy between the CLI and the server, which can cut connections and show messages.

Invariant: bytes pass unchanged, and are decoded only for observers.
Not here: any answer of its own; what the messages mean.
"""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, List, Optional

CHUNK = 1 << 16
CONNECTS_WITHIN = 20.0
Watch = Callable[[bytes], None]
# Called with who sent a message (scenario, connection, direction) and its text.
Observer = Callable[[str, str], None]


class Trace:
    """A file with one line per message: seconds, connection, direction, JSON."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._start = time.monotonic()

    def line(self, source: str, text: str) -> None:
        """Writes one line, at once, so that a hang leaves its last message behind."""
        with self._lock:
            self._file.write(f"{time.monotonic() - self._start:9.4f} {source} {text}\n")
            self._file.flush()


class Proxy:
    """Listens on a free loopback port and forwards every connection to the port `target`."""

    def __init__(self, name: str, target: int, observers: List[Observer]) -> None:
        self.connections = 0
        self._name = name
        self._target = target
        self._observers = observers
        self._lock = threading.Lock()
        self._open: List[socket.socket] = []
        self._refuse_until = 0.0
        self._cut_at = 0.0
        self._last_try = 0.0
        self._connected = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Returns the port that clients connect to."""
        return self._listener.getsockname()[1]

    def cut(self, seconds: float) -> None:
        """Drops every connection without a Close frame, and new ones for a while."""
        for observe in self._observers:
            observe(self._name, f"-- cut for {seconds} s")
        with self._lock:
            self._cut_at = time.monotonic()
            self._refuse_until = self._cut_at + seconds
        self._drop()

    def tried_for(self) -> float:
        """Returns how long after the last cut somebody still tried to connect."""
        with self._lock:
            return max(0.0, self._last_try - self._cut_at)

    def wait_for_connection(self) -> bool:
        """Waits until somebody is connected."""
        return self._connected.wait(CONNECTS_WITHIN)

    def close(self) -> None:
        """Stops listening and drops every connection."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            sockets, self._open = self._open, []
        for each in sockets:
            # Wakes the threads that read it; they close it.
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._last_try = time.monotonic()
            server = self._connect()
            if server is None:
                client.close()
                continue
            with self._lock:
                self.connections += 1
                number = self.connections
                self._open += [client, server]
            self._connected.set()
            for source, sink, arrow in ((client, server, "->"), (server, client, "<-")):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                watch = self._watcher(f"{self._name}#{number} {arrow}")
                threading.Thread(target=pump, args=(source, sink, watch), daemon=True).start()

    def _connect(self) -> Optional[socket.socket]:
        with self._lock:
            if time.monotonic() < self._refuse_until:
                return None
        try:
            return socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            return None

    def _watcher(self, source: str) -> Optional[Watch]:
        if not self._observers:
            return None
        decoder = Decoder()

        def watch(data: bytes) -> None:
            for text in decoder.feed(data):
                for observe in self._observers:
                    observe(source, text)

        return watch


def pump(source: socket.socket, sink: socket.socket, watch: Optional[Watch]) -> None:
    """Copies until either side ends, then ends both."""
    try:
        while True:
            data = source.recv(CHUNK)
            if not data:
                break
            if watch:
                watch(data)
            sink.sendall(data)
    except OSError:
        pass
    for each in (source, sink):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    source.close()


class Decoder:
    """Turns one direction of a websocket connection into lines to print (RFC 6455)."""

    def __init__(self) -> None:
        self._buffer = b""
        self._upgraded = False
        self._message = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Takes bytes as they come and yields what they complete."""
        self._buffer += data
        if not self._upgraded:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            self._upgraded = True
            self._buffer = rest
            yield " | ".join(hide_token(line) for line in head.decode("latin-1").split("\r\n"))
        while True:
            frame = self._take_frame()
            if frame is None:
                return
            yield from self._handle(*frame)

    def _take_frame(self) -> Optional[tuple]:
        data = self._buffer
        if len(data) < 2:
            return None
        length, at = data[1] & 0x7F, 2
        if length >= 126:
            wide = 2 if length == 126 else 8
            if len(data) < at + wide:
                return None
            length = int.from_bytes(data[at : at + wide], "big")
            at += wide
        mask = b""
        if data[1] & 0x80:
            mask = data[at : at + 4]
            at += 4
        if len(data) < at + length:
            return None
        payload = data[at : at + length]
        self._buffer = data[at + length :]
        if mask:
            payload = bytes(byte ^ mask[i & 3] for i, byte in enumerate(payload))
        return data[0], payload

    def _handle(self, first: int, payload: bytes) -> Iterator[str]:
        opcode = first & 0x0F
        if first & 0x70:
            yield f"<frame with extension bits {first:#x}, {len(payload)} bytes>"
        elif opcode in (0, 1, 2):
            self._message += payload
            if first & 0x80:
                text, self._message = self._message, b""
                yield text.decode("utf-8", "backslashreplace")
        else:
            name = {8: "close", 9: "ping", 10: "pong"}.get(opcode, f"opcode {opcode}")
            yield f"<{name} {payload!r}>"


def hide_token(header: str) -> str:
    """Returns a header line as the trace may show it."""
    name, colon, _ = header.partition(":")
    return f"{name}: <hidden>" if colon and name.lower() == "authorization" else header
