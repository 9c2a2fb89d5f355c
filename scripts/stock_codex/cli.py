"""One run of `codex exec` in a Codex home of its own, with the mock as its model.

Invariant: the CLI reaches loopback only; its HTTP proxy is the mock, which refuses.
Not here: which server it is pointed at (`scenarios`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Optional, Tuple

from model import Model
from server import clean_environment

# A variable that the CLI has and the server has not: no command may see it.
CLI_ONLY = "STOCK_CODEX_CLI_ONLY"
API_KEY = "STOCK_CODEX_API_KEY"
ENDS_WITHIN = 180.0

CONFIG = """\
model = "{model}"
model_provider = "mock"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
# These would ask other hosts at start-up.
apps = false
plugins = false
{features}

[model_providers.mock]
name = "mock"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
env_key = "{key}"
request_max_retries = 0
stream_max_retries = 0
"""


@dataclass
class Home:
    """What a scenario writes into the Codex home."""

    # One that the CLI knows nothing of gets the tools that every model can call.
    model: str = "mock"
    # Lines below `[features]`.
    features: str = ""
    # The content of `environments.toml`.
    environments: Optional[str] = None
    # A sandbox of `codex exec`; without one, commands and files are not restricted.
    sandbox: Optional[str] = None
    # Settings that `codex exec` gets by `-c`.
    settings: Tuple[str, ...] = ()

    def write(self, folder: Path, model_port: int) -> None:
        """Writes it, with the mock as the model's provider."""
        home = folder / "home"
        config = CONFIG.format(
            model=self.model, port=model_port, key=API_KEY, features=self.features
        )
        (home / "config.toml").write_text(config, encoding="utf-8")
        if self.environments is not None:
            (home / "environments.toml").write_text(self.environments, encoding="utf-8")


def run(
    codex: Path, folder: Path, model_port: int, variables: Dict[str, str], home: Home
) -> "Ended":
    """Runs one prompt to its end; the CLI's own output goes to `codex.log`."""
    command = [str(codex), "exec", "--json", "--skip-git-repo-check"]
    if home.sandbox is None:
        command += ["--dangerously-bypass-approvals-and-sandbox"]
    else:
        command += ["--sandbox", home.sandbox]
    for setting in home.settings:
        command += ["-c", setting]
    command += ["--output-last-message", str(folder / "answer.txt"), "--cd", str(folder / "work")]
    environment = {**environment_of_cli(folder, model_port), **variables}
    with (folder / "codex.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "Do what the script says."],
            cwd=folder / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            status: Optional[int] = process.wait(ENDS_WITHIN)
        except BaseException as error:
            # The npm launcher runs the binary as its child: end the session that we made for them.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            status = None
    return Ended(status, folder)


def environment_of_cli(folder: Path, model_port: int) -> Dict[str, str]:
    """Returns the environment of the CLI: nothing of the server's, and no way out."""
    refusing = f"http://127.0.0.1:{model_port}"
    return {
        **clean_environment(folder),
        "CODEX_HOME": str(folder / "home"),
        API_KEY: "dummy",
        CLI_ONLY: "1",
        "HTTP_PROXY": refusing,
        "HTTPS_PROXY": refusing,
        "ALL_PROXY": refusing,
        "NO_PROXY": "127.0.0.1,localhost",
    }


class Ended:
    """A CLI that has ended; `status` is none if it had to be killed."""

    def __init__(self, status: Optional[int], folder: Path) -> None:
        self.status = status
        self._folder = folder

    def answer(self) -> Optional[str]:
        """Returns the last message of the model, as the CLI saved it."""
        path = self._folder / "answer.txt"
        return path.read_text(encoding="utf-8").strip() if path.exists() else None

    def tail(self) -> str:
        """Returns the last lines of the CLI's own output."""
        text = (self._folder / "codex.log").read_text(encoding="utf-8", errors="backslashreplace")
        return "\n".join(text.splitlines()[-12:])

    def save(self, model: Model) -> None:
        """Keeps what the CLI sent to the model or elsewhere, for a person who debugs a failure."""
        text = json.dumps({"refused": model.refused, "requests": model.requests}, indent=1)
        (self._folder / "requests.json").write_text(text, encoding="utf-8")
