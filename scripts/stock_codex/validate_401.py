"""The registry rejects the executor's own credential: both ends say so, and nobody waits.

The executor's token is revoked while it is online, so that the hub answers its `validate` with 401.
Since 0.169 the executor tells the harness why; an older stock end only resets the stream.
Not here: executors whose token is good (`remote`).
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
from typing import Callable, List

import cli
from conversations import ANSWER
from hub import Hub
from model import Conversation, Item
from remote import executor, hub_of, ours, stock
from scenarios import Run
from server import STARTS_WITHIN, StartFailed, clean_environment
from tools import Shell, offered_tools

Harness = Callable[[Run, Hub], None]

# What our client says, and what the CLI says.
REJECTED = "environment registry authentication rejected"
CLI_REJECTED = "executor credentials rejected"
# The first release whose ends tell this apart.
SINCE = (0, 169, 0)
# A running hub takes notice of a revoked token within a second.
NOTICED_WITHIN = 10.0
GIVES_UP_WITHIN = 20.0


def validate_401_ours(run: Run) -> None:
    """Our executor, the stock harness."""
    rejected_executor(run, "executor", ours(run), stock_harness)


def validate_401_stock(run: Run) -> None:
    """The stock executor, our harness."""
    rejected_executor(run, "stock-executor", stock(run), our_harness)


def rejected_executor(run: Run, name: str, command: List[str], harness: Harness) -> None:
    """Starts an executor, revokes its token, and has a harness try to reach it."""
    with hub_of(run) as hub:
        with executor(run, hub, name, command):
            of_executor, hub.token = hub.token, create_token(run)
            wait_for(hub, hub.token, accepted=True)
            revoke_oldest_token(run)
            wait_for(hub, of_executor, accepted=False)
            harness(run, hub)


def stock_harness(run: Run, hub: Hub) -> None:
    """Has the model of the CLI run a command, which cannot be."""

    def conversation(request: Item) -> Conversation:
        shell = Shell(offered_tools(request))
        told = json.dumps(request["input"])
        if run.setup.version >= SINCE:
            run.section.check("the CLI tells the model why", CLI_REJECTED in told, told[-2000:])
        result = yield from shell.start("echo unreachable")
        text = result.text
        run.section.check("no command ran", "\nunreachable" not in text, text)
        return ANSWER

    run.converse(conversation, cli.Home(), variables=hub.variables())


def our_harness(run: Run, hub: Hub) -> None:
    """Runs a command with our client, which cannot be."""
    began = time.monotonic()
    ended = subprocess.run(
        [str(run.setup.ours), "run", "--", "echo", "unreachable"],
        env={**clean_environment(run.folder), **hub.variables()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    took = time.monotonic() - began
    run.section.check("no command ran", ended.returncode != 0, ended.stdout)
    if run.setup.version >= SINCE:
        run.section.check("our client tells why", REJECTED in ended.stdout, ended.stdout)
        detail = f"{took:.1f} s"
        run.section.check("our client gives up at once", took < GIVES_UP_WITHIN, detail)


def create_token(run: Run) -> str:
    """Makes another token of the hub's principal."""
    roles = ["--role", "executor", "--role", "harness", "--role", "admin"]
    return hub_tool(run, "create", "--name", "team", *roles).splitlines()[-1].strip()


def revoke_oldest_token(run: Run) -> None:
    """Revokes the token that was made first."""
    tokens = json.loads(hub_tool(run, "list", "--json"))
    hub_tool(run, "revoke", tokens[0]["id"])


def wait_for(hub: Hub, token: str, accepted: bool) -> None:
    """Waits until the hub accepts a token, or refuses it."""
    kept, hub.token = hub.token, token
    deadline = time.monotonic() + NOTICED_WITHIN
    try:
        while time.monotonic() < deadline:
            try:
                hub.is_attached()
                is_accepted = True
            except urllib.error.HTTPError:
                is_accepted = False
            if is_accepted == accepted:
                return
            time.sleep(0.05)
    finally:
        hub.token = kept
    raise StartFailed("the hub does not take notice of its tokens")


def hub_tool(run: Run, *arguments: str) -> str:
    """Runs `hub token` on the hub's directory and returns what it prints."""
    ended = subprocess.run(
        [str(run.setup.ours), "hub", "token", *arguments, "--data-dir", str(run.folder / "hub")],
        env=clean_environment(run.folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=STARTS_WITHIN,
        check=True,
    )
    return ended.stdout


ALL = {each.__name__.replace("_", "-"): each for each in (validate_401_ours, validate_401_stock)}
