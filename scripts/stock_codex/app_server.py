"""The CLI as `codex app-server`: the only way to run it in which somebody can approve a command.

Invariant: it reaches loopback only, as `codex exec` does (`cli`).
Not here: what is approved (`escalation`).
"""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from cli import environment_of_cli

ENDS_WITHIN = 120.0
CLIENT = {"clientInfo": {"name": "stock-codex", "version": "0"}}
# Answers a request of the CLI.
Approve = Callable[[str, Dict[str, Any]], Dict[str, Any]]


class AppServer:
    """One process, one thread of the model, one turn."""

    def __init__(
        self, codex: Path, folder: Path, model_port: int, variables: Dict[str, str]
    ) -> None:
        self._log = (folder / "app-server.log").open("wb")
        self.messages: List[Dict[str, Any]] = []
        self._process = subprocess.Popen(
            [str(codex), "app-server"],
            cwd=folder / "work",
            env={**environment_of_cli(folder, model_port), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._next = 1
        # Ends a turn that never does, because a read of the pipe cannot be bounded.
        self._guard = threading.Timer(ENDS_WITHIN, self._process.kill)
        self._guard.start()

    def run_turn(self, thread: Dict[str, Any], approve: Approve) -> Optional[Dict[str, Any]]:
        """Runs one prompt to its end; none if the process ended before."""
        self._ask("initialize", CLIENT)
        self._send({"method": "initialized"})
        started = self._ask("thread/start", thread)
        identity = ((started.get("result") or {}).get("thread") or {}).get("id")
        prompt = [{"type": "text", "text": "Do what the script says."}]
        self._ask("turn/start", {"threadId": identity, "input": prompt})
        while True:
            message = self._receive()
            if message is None:
                return None
            if "method" in message and "id" in message:
                answer = approve(message["method"], message.get("params") or {})
                self._send({"id": message["id"], "result": answer})
            elif message.get("method") == "turn/completed":
                return message

    def stop(self) -> None:
        """Ends it."""
        self._guard.cancel()
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ask(self, method: str, params: Dict[str, Any]) -> Dict[str, Any]:
        number, self._next = self._next, self._next + 1
        self._send({"id": number, "method": method, "params": params})
        while True:
            message = self._receive()
            if message is None:
                return {}
            if message.get("id") == number and "method" not in message:
                return message

    def _send(self, message: Dict[str, Any]) -> None:
        if self._process.stdin:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _receive(self) -> Optional[Dict[str, Any]]:
        line = self._process.stdout.readline() if self._process.stdout else b""
        if not line:
            return None
        message = json.loads(line)
        self.messages.append(message)
        return message
