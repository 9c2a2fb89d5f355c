"""Executors behind our hub: every pair of the stock CLI's ends and ours meets there.

The stock harness is the CLI, told by its variables; our harness is the conformance suite.
Not here: the processes (`hub`), the commands that are run (`conversations`).
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, List

import cli
from binaries import executable_of
from file_conversations import Files
from file_scenarios import TOOL_MODEL
from hub import Hub
from project import Project
from proxy import Proxy
from scenarios import Run
from server import Child
from wire import Wire


def remote_ours(run: Run) -> None:
    """Our executor, our hub, the stock harness: commands, terminals and files."""
    with hub_of(run) as hub, executor(run, hub, "executor", ours(run)):
        run.converse(run.talk.everything, cli.Home(), variables=hub.variables())


def remote_stock(run: Run) -> None:
    """The stock executor, our hub, the stock harness."""
    with hub_of(run) as hub, executor(run, hub, "stock-executor", stock(run)):
        run.converse(run.talk.everything, cli.Home(), variables=hub.variables())


def remote_files(run: Run) -> None:
    """Instructions, patches and an image, through the hub, on our executor."""
    with hub_of(run) as hub, executor(run, hub, "executor", ours(run)):
        about_files(run, hub)


def remote_stock_files(run: Run) -> None:
    """The same with the stock executor."""
    with hub_of(run) as hub, executor(run, hub, "stock-executor", stock(run)):
        about_files(run, hub)


def remote_cut(run: Run) -> None:
    """The harness's websocket breaks while a command writes, and the session is resumed."""
    with hub_of(run) as hub, executor(run, hub, "executor", ours(run)):
        through_a_cut(run, hub)


def remote_stock_cut(run: Run) -> None:
    """The same with the stock executor."""
    with hub_of(run) as hub, executor(run, hub, "stock-executor", stock(run)):
        through_a_cut(run, hub)


def about_files(run: Run, hub: Hub) -> None:
    """Does a bit of everything with the files of a project."""
    # What is on the wire cannot be seen: that is what the hub is for.
    files = Files(run.section, run.nonce, Project(run.folder), Wire())
    files.write_instructions()
    files.write_sources()
    files.write_image()
    run.converse(files.basics, cli.Home(model=TOOL_MODEL), variables=hub.variables())


def through_a_cut(run: Run, hub: Hub) -> None:
    """Runs a conversation whose connections to the hub are cut in its middle."""
    proxy = Proxy(run.name, hub.port, [])
    try:
        # The way to the registry stays open: the CLI does not ask again if that breaks, too.
        conversation = run.talk.through_a_cut(lambda _: proxy.cut(0.0))
        run.converse(conversation, cli.Home(), variables=hub.variables(proxy.port))
    finally:
        proxy.close()


@contextmanager
def hub_of(run: Run) -> Iterator[Hub]:
    """Starts a hub, and checks in the end that it was an orderly one."""
    hub = Hub(Path(run.setup.ours), run.folder)
    try:
        yield hub
    finally:
        run.section.equal("the hub ends with 0", hub.stop(), 0)


@contextmanager
def executor(run: Run, hub: Hub, name: str, command: List[str]) -> Iterator[Child]:
    """Starts an executor, and checks in the end that it was an orderly one."""
    child = hub.executor(name, command, run.nonce)
    try:
        yield child
    finally:
        run.section.equal(f"the {name} ends with 0", child.stop(), 0)


def ours(run: Run) -> List[str]:
    """Returns the command of our executor."""
    return [str(run.setup.ours)]


def stock(run: Run) -> List[str]:
    """Returns the command of the stock executor; not its launcher, which is no child to signal."""
    return [str(executable_of(run.setup.codex)), "exec-server"]


ALL = {
    each.__name__.replace("_", "-"): each
    for each in (
        remote_ours,
        remote_stock,
        remote_files,
        remote_stock_files,
        remote_cut,
        remote_stock_cut,
    )
}
