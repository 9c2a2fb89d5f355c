"""The scenarios about files: each a project on the server, and one run of the CLI.

Not here: what is done with the files (`file_conversations`).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Iterator

import cli
from file_conversations import Files
from model import Conversation, Item
from project import LARGE_IMAGE_SIDE, Project
from scenarios import CODE_MODEL, Run, program_toml, url_of
from wire import Wire

# A model of the CLI's own catalogue that calls its tools itself, `apply_patch` among them.
TOOL_MODEL = "gpt-5.5"


def instructions(run: Run) -> None:
    """`AGENTS.md` and a skill that are on the server's disk."""
    with reached(run) as (files, converse):
        files.write_instructions()
        files.write_skill()
        converse(files.instructions, cli.Home())


def watch(run: Run) -> None:
    """A project without skills, which the CLI remembers until the server says otherwise."""
    with reached(run) as (files, converse):
        converse(files.watched, cli.Home())


def patch(run: Run) -> None:
    """Patches by the tool `apply_patch`."""
    patches(run, TOOL_MODEL, "apply_patch")


def patch_code(run: Run) -> None:
    """Patches from JavaScript cells (code mode)."""
    patches(run, CODE_MODEL, "exec")


def patch_shell(run: Run) -> None:
    """Patches written as a shell command, for a model that is offered no tool for them."""
    patches(run, cli.Home.model, "exec_command")


def image(run: Run) -> None:
    """An image of some megabytes, which `view_image` reads as a whole."""
    with reached(run) as (files, converse):
        files.write_image()
        converse(files.seen, cli.Home(model=TOOL_MODEL))


def image_large(run: Run) -> None:
    """An image that is more than the CLI takes in one frame: the server must send several."""
    with reached(run) as (files, converse):
        files.write_image(LARGE_IMAGE_SIDE)
        converse(files.seen_large, cli.Home(model=TOOL_MODEL))


def read_only(run: Run) -> None:
    """The sandbox that `codex exec` has by default."""
    with reached(run) as (files, converse):
        files.write_instructions()
        files.write_sources()
        files.write_image()
        converse(files.read_only, cli.Home(model=TOOL_MODEL, sandbox="read-only"))


def workspace(run: Run) -> None:
    """The sandbox in which the model may write to the project."""
    with reached(run) as (files, converse):
        files.write_instructions()
        files.write_sources()
        files.write_outside()
        files.write_image()
        converse(files.workspace, cli.Home(model=TOOL_MODEL, sandbox="workspace-write"))


def workspace_code(run: Run) -> None:
    """Patches from JavaScript cells, in that sandbox."""
    with reached(run) as (files, converse):
        files.write_sources()
        files.write_outside()
        home = cli.Home(model=CODE_MODEL, sandbox="workspace-write")
        converse(files.patched_under_policy("exec"), home)


def stdio_files(run: Run) -> None:
    """Files through a server that the CLI starts itself."""
    files = Files(run.section, run.nonce, Project(run.folder), Wire())
    files.write_instructions()
    files.write_sources()
    files.write_image()
    run.converse(files.basics, cli.Home(model=TOOL_MODEL, environments=program_toml(run)))


def patches(run: Run, model: str, tool: str) -> None:
    """Runs the patches with a model to which the CLI offers them by `tool`."""
    with reached(run) as (files, converse):
        files.write_sources()
        converse(files.patched(tool), cli.Home(model=model))


@contextmanager
def reached(run: Run) -> Iterator[tuple]:
    """Gives a project with a server whose messages are recorded, and the way to run the CLI."""
    wire = Wire()
    files = Files(run.section, run.nonce, Project(run.folder), wire)
    with run.server() as server, run.front(server, wire.observe) as proxy:

        def converse(conversation: Callable[[Item], Conversation], home: cli.Home) -> None:
            run.converse(conversation, home, url_of(proxy.port))

        yield files, converse


ALL = {
    each.__name__.replace("_", "-"): each
    for each in (
        instructions,
        watch,
        patch,
        patch_code,
        patch_shell,
        image,
        image_large,
        read_only,
        workspace,
        workspace_code,
        stdio_files,
    )
}
# What the CLI's own server fails at: it sends a message as one frame, however large.
BEYOND_STOCK = ("image-large",)
