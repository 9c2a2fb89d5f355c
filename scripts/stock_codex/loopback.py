"""What a command may find on this machine's network: a TCP port and a unix socket of the harness.

Invariant: a connection is counted before it is greeted.
Not here: who may reach them (`sandbox_conversations`).
"""

from __future__ import annotations

import shlex
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Dict, List

GREETING = "the harness greets you"
PORT = "a loopback port"
UNIX = "a unix socket"
CLIENT = """\
import socket
connection = socket.socket(socket.{family}, socket.SOCK_STREAM)
connection.settimeout(5)
connection.connect({address!r})
print(connection.recv(64).decode())
"""


class Loopback:
    """Listens on a free loopback port and on a unix socket; greets and counts who connects."""

    def __init__(self) -> None:
        self.reached: List[str] = []
        # Not below the scenario's folder: the name of a unix socket has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="stock-codex-")
        path = str(Path(self._folder.name) / "socket")
        port = socket.create_server(("127.0.0.1", 0))
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.bind(path)
        unix.listen()
        # The commands that print the greeting, by what they connect to.
        self.commands: Dict[str, str] = {
            PORT: client("AF_INET", port.getsockname()),
            UNIX: client("AF_UNIX", path),
        }
        self._listeners = {PORT: port, UNIX: unix}
        for name, listener in self._listeners.items():
            threading.Thread(target=self._greet, args=(name, listener), daemon=True).start()

    def close(self) -> None:
        """Stops listening."""
        for listener in self._listeners.values():
            try:
                # Wakes the thread that accepts.
                listener.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            listener.close()
        self._folder.cleanup()

    def _greet(self, name: str, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.reached.append(name)
            with connection:
                connection.sendall(GREETING.encode())


def client(family: str, address: object) -> str:
    """Returns the shell command that connects to an address."""
    script = CLIENT.format(family=family, address=address)
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(script)}"
