"""The scenarios about sandboxed commands: each a policy that the CLI asks for, and one run of it.

Not here: what is tried in the sandbox (`sandbox_conversations`).
"""

from __future__ import annotations

from typing import Callable

import cli
from model import Conversation, Item
from sandbox_conversations import Sandboxed
from scenarios import CODE_MODEL, Run, url_of
from wire import Wire

WORKSPACE = "workspace-write"
READ_ONLY = "read-only"
NETWORK = "sandbox_workspace_write.network_access=true"


def sandbox(run: Run) -> None:
    """`--sandbox workspace-write`, and every kind of command."""
    sandboxed(run, Sandboxed.workspace, cli.Home(sandbox=WORKSPACE))


def sandbox_code(run: Run) -> None:
    """The same for a current model, which runs its commands from JavaScript cells."""
    sandboxed(run, Sandboxed.in_code_mode, cli.Home(model=CODE_MODEL, sandbox=WORKSPACE))


def sandbox_interrupt(run: Run) -> None:
    """A command that is interrupted in its sandbox."""
    sandboxed(run, Sandboxed.interrupted, cli.Home(sandbox=WORKSPACE))


def sandbox_metadata(run: Run) -> None:
    """A work directory in which what the CLI protects is missing."""
    sandboxed(run, Sandboxed.metadata, cli.Home(sandbox=WORKSPACE))


def sandbox_network(run: Run) -> None:
    """A writable work directory, with the network that the server has."""
    sandboxed(run, Sandboxed.network, cli.Home(sandbox=WORKSPACE, settings=(NETWORK,)))


def sandbox_proxy(run: Run) -> None:
    """A writable work directory, with a proxy that the server runs as the only way out."""
    domains = '{enabled = true, domains = {"127.0.0.1" = "allow"}}'
    settings = (NETWORK, f"features.network_proxy={domains}")
    sandboxed(run, Sandboxed.proxied, cli.Home(sandbox=WORKSPACE, settings=settings))


def sandbox_read_only(run: Run) -> None:
    """`--sandbox read-only`, which is what `codex exec` has by default."""
    sandboxed(run, Sandboxed.read_only, cli.Home(sandbox=READ_ONLY))


def sandboxed(
    run: Run, conversation: Callable[[Sandboxed, Item], Conversation], home: cli.Home
) -> None:
    """Runs one conversation with a server whose messages are recorded."""
    outside = run.folder / "outside"
    outside.mkdir()
    wire = Wire()
    told = Sandboxed(run.section, run.talk, outside, wire)
    try:
        with run.server() as server, run.front(server, wire.observe) as proxy:
            run.converse(lambda request: conversation(told, request), home, url_of(proxy.port))
    finally:
        told.loopback.close()


ALL = {
    each.__name__.replace("_", "-"): each
    for each in (
        sandbox,
        sandbox_code,
        sandbox_interrupt,
        sandbox_metadata,
        sandbox_network,
        sandbox_proxy,
        sandbox_read_only,
    )
}
# What the CLI's own server fails at: an interrupt ends the program that confines the command, and
# empty folders stand in for protected ones, which the user sees while a command runs.
BEYOND_STOCK = ("sandbox-interrupt", "sandbox-metadata")
