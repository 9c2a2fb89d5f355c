"""`exec-server env add` in every form, and after each the CLI, which must still start.

The CLI refuses to start on an `environments.toml` with a key that it does not know.
"""

from __future__ import annotations

import subprocess
from typing import Dict, List

import cli
from conversations import ANSWER
from model import Conversation, Item
from scenarios import Run
from server import clean_environment

# The arguments behind `env add NAME`; `{token}` is a file with a token.
FORMS: Dict[str, List[str]] = {
    "url": ["ws://127.0.0.1:1"],
    "url-token-file": ["ws://127.0.0.1:1", "--token-file", "{token}"],
    "url-token-env": ["ws://127.0.0.1:1", "--token-env", "TOKEN"],
    "hub-token-file": ["--hub", "http://127.0.0.1:1", "--token-file", "{token}"],
    "hub-token-env": ["--hub", "http://127.0.0.1:1", "--token-env", "TOKEN"],
    "hub-id": [
        "--hub", "http://127.0.0.1:1", "--environment-id", "far", "--token-file", "{token}",
    ],
    "command": ["--command", "ssh", "box", "exec-server --listen stdio"],
}


def env_add(run: Run) -> None:
    """Adds an environment in every form to the same files, and starts the CLI after each."""
    token = run.folder / "token"
    token.write_text("t0ken\n", encoding="utf-8")
    for name, form in FORMS.items():
        words = [word.format(token=token) for word in form]
        add(run, name, ["env", "add", name, *words])
        run.converse(only_the_answer, cli.Home())
    add(run, "default", ["env", "default", "url-token-file"])
    run.converse(only_the_answer, cli.Home())


def add(run: Run, name: str, arguments: List[str]) -> None:
    """Runs one of our commands with the CLI's own home as the Codex home."""
    environment = {
        **clean_environment(run.folder),
        "CODEX_HOME": str(run.folder / "home"),
        "TOKEN": "t0ken",
    }
    environment.pop("XDG_CONFIG_HOME", None)
    ended = subprocess.run(
        [str(run.setup.ours), *arguments],
        cwd=run.folder / "work",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    run.section.equal(f"{name}: our command ends well", (ended.returncode, ended.stdout), (0, ""))


def only_the_answer(_request: Item) -> Conversation:
    """Answers at once: that the CLI asks at all is what is checked."""
    yield from ()
    return ANSWER


ALL = {"env-add": env_add}
