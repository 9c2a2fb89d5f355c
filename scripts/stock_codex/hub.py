"""Our hub and the executors that are reached through it, as child processes.

Not here: who connects to them (`remote`).
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Dict, List, Optional

from server import NONCE, STARTS_WITHIN, Child, StartFailed, clean_environment

ENVIRONMENT = "box-7"
# Executors register and open their websocket; the stock one looks around first.
ATTACHES_WITHIN = 20.0


class Hub:
    """A hub with an embedded store on a free loopback port, and one token for all of its sides."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._folder = folder
        data = ["--data-dir", str(folder / "hub")]
        roles = ["--role", "executor", "--role", "harness", "--role", "admin"]
        made = subprocess.run(
            [str(program), "hub", "token", "create", "--name", "team", *roles, *data],
            env=clean_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STARTS_WITHIN,
        )
        if made.returncode != 0:
            raise StartFailed(f"no token: {made.stdout}")
        self.token = made.stdout.strip().splitlines()[-1].strip()
        command = [str(program), "hub", "--listen", "127.0.0.1:0", *data]
        self._child = Child("hub", command, folder, {})
        line = self._child.first_line()
        if line is None or not line.startswith("http://127.0.0.1:"):
            self._child.stop()
            raise StartFailed(f"no URL on stdout but {line}; see {folder / 'hub.log'}")
        self.url = line
        self.port = int(line.rpartition(":")[2])

    def executor(self, name: str, command: List[str], nonce: str) -> Child:
        """Starts an executor of either make and waits until its websocket is attached."""
        home = self._folder / f"home-{name}"
        home.mkdir(exist_ok=True)
        more = {"CODEX_API_KEY": self.token, "CODEX_HOME": str(home), NONCE: nonce}
        flags = ["--remote", self.url, "--environment-id", ENVIRONMENT]
        child = Child(name, [*command, *flags], self._folder, more)
        deadline = time.monotonic() + ATTACHES_WITHIN
        while time.monotonic() < deadline and child.ended() is None:
            if self.is_attached():
                return child
            time.sleep(0.05)
        status = child.stop()
        raise StartFailed(f"the executor is not attached ({status}); see {name}.log")

    def is_attached(self) -> bool:
        """Tells whether the hub has a websocket of the environment's executor."""
        request = urllib.request.Request(f"{self.url}/hub/v1/environments")
        request.add_header("Authorization", f"Bearer {self.token}")
        # The proxy variables of this process are none of the hub's business.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=STARTS_WITHIN) as answer:
            listed = json.load(answer)["environments"]
        return any(each["environment_id"] == ENVIRONMENT and each["online"] for each in listed)

    def variables(self, port: Optional[int] = None) -> Dict[str, str]:
        """Returns what selects the environment for a harness, through a proxy if one is named."""
        return {
            "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL": f"http://127.0.0.1:{port or self.port}",
            "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID": ENVIRONMENT,
            "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": self.token,
        }

    def stop(self) -> Optional[int]:
        """Ends it and returns its status."""
        return self._child.stop()
