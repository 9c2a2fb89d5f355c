"""Our programs as child processes, the server among them, and the environment that only they have.

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


class Child:
    """A child process that is ended by SIGTERM; its log is below the folder of the run."""

    def __init__(self, name: str, command: List[str], folder: Path, more: Dict[str, str]) -> None:
        self._log = (folder / f"{name}.log").open("wb")
        self._process = subprocess.Popen(
            command,
            cwd=folder / "host",
            env={**clean_environment(folder), **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.lines: List[str] = []
        self._first = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def first_line(self) -> Optional[str]:
        """Waits for the first line that it prints."""
        self._first.wait(STARTS_WITHIN)
        return self.lines[0] if self.lines else None

    def ended(self) -> Optional[int]:
        """Returns its status if it has ended by itself."""
        return self._process.poll()

    def stop(self) -> Optional[int]:
        """Ends it and returns its status; none if it had to be killed."""
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

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append(line.decode("utf-8", "backslashreplace").rstrip("\n"))
            self._first.set()
        self._first.set()


class Server(Child):
    """A running exec-server on a free loopback port."""

    def __init__(
        self, command: List[str], nonce: str, folder: Path, name: str = "server"
    ) -> None:
        # Not the work directory: only the CLI names that one.
        super().__init__(
            name, [*command, "--listen", "ws://127.0.0.1:0"], folder, {NONCE: nonce}
        )
        line = self.first_line()
        if line is None or not line.startswith("ws://127.0.0.1:"):
            self.stop()
            raise StartFailed(f"no URL on stdout but {self.lines}; see {folder / name}.log")

    @property
    def port(self) -> int:
        """Returns the port it listens on."""
        return int(self.lines[0].rpartition(":")[2])


def clean_environment(folder: Path) -> Dict[str, str]:
    """Returns our environment with a new home, without what would steer the CLI or the server."""
    steering = ("CODEX_", "OPENAI_", "EXEC_SERVER_", "STOCK_CODEX_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(steering) and not name.lower().endswith("_proxy")
    }
    return {**kept, "HOME": str(folder / "user")}
