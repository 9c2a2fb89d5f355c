"""Our server as a child process, and the environment that only it has.

Not here: what the CLI is told about it (`cli`).
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Dict, List, Optional

# A variable that the server has and the CLI has not: a command that sees it ran on the server.
NONCE = "STOCK_CODEX_NONCE"
STARTS_WITHIN = 10.0
STOPS_WITHIN = 10.0


class StartFailed(Exception):
    """The server did not print its URL."""


class Server:
    """A running exec-server on a free loopback port."""

    def __init__(self, command: List[str], nonce: str, folder: Path) -> None:
        self._log = (folder / "server.log").open("wb")
        self._process = subprocess.Popen(
            [*command, "--listen", "ws://127.0.0.1:0"],
            # Not the work directory: only the CLI names that one.
            cwd=folder / "host",
            env={**clean_environment(folder), NONCE: nonce},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._lines: List[str] = []
        first = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(first,), daemon=True)
        self._reader.start()
        first.wait(STARTS_WITHIN)
        if not self._lines or not self._lines[0].startswith("ws://127.0.0.1:"):
            self.stop()
            raise StartFailed(f"no URL on stdout but {self._lines}; see {folder / 'server.log'}")

    @property
    def port(self) -> int:
        """Returns the port it listens on."""
        return int(self._lines[0].rpartition(":")[2])

    @property
    def lines(self) -> List[str]:
        """Returns what it wrote to stdout; all of it after `stop`."""
        return self._lines

    def stop(self) -> Optional[int]:
        """Ends it by SIGTERM and returns its status; none if it had to be killed."""
        self._process.terminate()
        try:
            status: Optional[int] = self._process.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            status = None
        self._reader.join(STOPS_WITHIN)
        self._log.close()
        return status

    def _read(self, first: threading.Event) -> None:
        for line in self._process.stdout or ():
            self._lines.append(line.decode("utf-8", "backslashreplace").rstrip("\n"))
            first.set()
        first.set()


def clean_environment(folder: Path) -> Dict[str, str]:
    """Returns our environment with a new home, without what would steer the CLI or the server."""
    steering = ("CODEX_", "OPENAI_", "EXEC_SERVER_", "STOCK_CODEX_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(steering) and not name.lower().endswith("_proxy")
    }
    return {**kept, "HOME": str(folder / "user")}
