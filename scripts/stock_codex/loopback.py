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
HEAD = f"HTTP/1.1 200 OK\r\ncontent-length: {len(GREETING)}\r\nconnection: close\r\n\r\n"
PORT = "a loopback port"
UNIX = "a unix socket"
PATIENCE = 5.0

# Connects by itself and asks as a browser would.
CLIENT = """\
import socket
connection = socket.socket(socket.{family}, socket.SOCK_STREAM)
connection.settimeout(5)
connection.connect({address!r})
connection.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
print(connection.makefile().read().partition("\\n\\n")[2])
"""
# Takes the proxy that the environment names, as most programs do.
FETCH = """\
import urllib.error, urllib.request
try:
    print(urllib.request.urlopen({url!r}, timeout=5).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
# Asks that proxy for a tunnel, as programs do for HTTPS.
TUNNEL = """\
import http.client, os, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["https_proxy"])
connection = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=5)
connection.set_tunnel({host!r}, {port})
connection.request("GET", "/")
print(connection.getresponse().read().decode())
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
        host, number = port.getsockname()
        # The commands that print the greeting, by what they connect to.
        self.direct: Dict[str, str] = {
            PORT: command(CLIENT, family="AF_INET", address=(host, number)),
            UNIX: command(CLIENT, family="AF_UNIX", address=path),
        }
        # The same through the proxy of their environment, by what they ask it for.
        self.proxied: Dict[str, str] = {
            "a request": fetch(f"http://{host}:{number}/"),
            "a tunnel": command(TUNNEL, host=host, port=number),
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
                greet(connection)


def greet(connection: socket.socket) -> None:
    """Answers one request of HTTP with the greeting."""
    connection.settimeout(PATIENCE)
    asked = b""
    try:
        while b"\r\n\r\n" not in asked:
            more = connection.recv(1 << 12)
            if not more:
                return
            asked += more
        connection.sendall((HEAD + GREETING).encode())
    except OSError:
        pass


def fetch(url: str) -> str:
    """Returns the shell command that prints what a URL has, or why it is refused."""
    return command(FETCH, url=url)


def command(script: str, **values: object) -> str:
    """Returns the shell command that runs a script of Python."""
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(script.format(**values))}"
