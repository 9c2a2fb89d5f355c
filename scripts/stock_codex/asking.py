"""A client of either server: raw JSON-RPC over a websocket, for what is measured and compared.

Not here: what is asked (`parity`, `timers`, `surface`).
"""

from __future__ import annotations

import base64
import json
import os
import socket
from typing import Any, Dict, List, Optional, Tuple

from proxy import Decoder

PATIENCE = 20.0
HANDSHAKE = (
    "GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Gone(Exception):
    """The server closed the connection."""


class Client:
    """One connection, before or after `initialize`."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(HANDSHAKE.format(port=port, key=key).encode())
        self._decoder = Decoder()
        self._lines: List[str] = []
        self._next = 1
        # The head of the upgrade.
        self._line()

    def send(self, text: bytes) -> None:
        """Sends one text message, whatever it holds."""
        mask = os.urandom(4)
        size = len(text)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        masked = bytes(byte ^ mask[i & 3] for i, byte in enumerate(text))
        self._socket.sendall(b"\x81" + length + mask + masked)

    def receive(self) -> Dict[str, Any]:
        """Returns the next message."""
        while True:
            line = self._line()
            if line.startswith("{"):
                return json.loads(line)

    def ask(self, method: str, params: Any) -> Dict[str, Any]:
        """Sends a request and returns its answer; other messages are dropped."""
        number, self._next = self._next, self._next + 1
        message = {"id": number, "method": method, "params": params}
        self.send(json.dumps(message).encode())
        while True:
            answer = self.receive()
            if answer.get("id") == number and "method" not in answer:
                return answer

    def initialize(self, resume: Optional[str] = None) -> Dict[str, Any]:
        """Begins or resumes a session and returns the answer to that."""
        answer = self.ask("initialize", {"clientName": "stock-codex", "resumeSessionId": resume})
        self.send(b'{"method":"initialized","params":{}}')
        return answer

    def address(self) -> Tuple[str, int]:
        """Returns our own end, which is the peer of the server."""
        return self._socket.getsockname()

    def close(self) -> None:
        """Drops the connection."""
        self._socket.close()

    def _line(self) -> str:
        while not self._lines:
            data = self._socket.recv(1 << 16)
            if not data:
                raise Gone("the server closed the connection")
            self._lines += self._decoder.feed(data)
        return self._lines.pop(0)
