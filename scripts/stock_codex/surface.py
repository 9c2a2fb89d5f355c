"""What the stock server offers on its command line and in `initialize`, held against ours.

Not here: what the flags and capabilities do.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

from asking import Client
from binaries import executable_of
from scenarios import Run
from server import Server, clean_environment

# Every capability that the stock server announces is announced by ours or stands here.
DECLINED: Dict[str, str] = {
    "credentialMasking": "needs a secret broker; a start that asks for masking is refused",
    "credentialMaskingCustomProviders": "as credentialMasking",
    "linuxRootWritePreservesDevices": "not claimed: which devices a command under a root-writable "
    "policy sees has no test against stock yet; without it the CLI sends such commands as before",
    "windowsMxc": "only on Windows, where this server does not run",
}
FLAG = re.compile(r"^\s+(?:(-\w), )?(--[\w-]+)(?: <([^>]+)>)?", re.MULTILINE)
# Known by no release of either server. A parser complains about the first flag that it does not know.
UNKNOWN = "--flag-that-does-not-exist"
ENDS_WITHIN = 20.0


def flags(run: Run) -> None:
    """Ours knows every flag of `codex exec-server` and of its subcommand."""
    codex = str(run.setup.codex)
    for command in ([], ["forward"]):
        shown = output_of([codex, "exec-server", *command, "--help"], run.folder)
        found = [match.groups() for match in FLAG.finditer(shown)]
        name = " ".join(["exec-server", *command])
        run.section.check(f"{name} has flags", len(found) > 5, shown)
        refused = [flag for each in found for flag in refused_spellings(run, command, each)]
        detail = f"unknown to ours: {', '.join(refused)}"
        run.section.check(f"ours knows the {len(found)} flags of {name}", not refused, detail)


def refused_spellings(run: Run, command: List[str], flag: Tuple[str, str, str]) -> List[str]:
    """Returns the spellings of a flag that ours does not know."""
    short, long, value = flag
    if long == "--help":
        return []
    refused = []
    for spelling in filter(None, (short, long)):
        arguments = [spelling, *(["1"] if value else []), UNKNOWN]
        told = output_of([str(run.setup.ours), *command, *arguments], run.folder)
        # A value of another kind is complained about by name; the flag itself is known then.
        known = UNKNOWN in told or f"for '{long}" in told
        if not known:
            refused.append(spelling)
    return refused


def output_of(command: List[str], folder: Path) -> str:
    """Returns what a command prints."""
    ended = subprocess.run(
        command,
        env=clean_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=ENDS_WITHIN,
    )
    return ended.stdout


def capabilities(run: Run) -> None:
    """Ours announces every capability of the stock server, or declines it with a reason."""
    with stock_server(run) as stock, run.server() as ours:
        theirs = announced(stock.port)
        our = announced(ours.port)
    run.section.check("the stock server announces capabilities", bool(theirs), str(theirs))
    for key, value in sorted(theirs.items()):
        if key in DECLINED:
            name = f"{key} is declined: {DECLINED[key]}"
            run.section.check(name, not our.get(key), f"ours announces {our.get(key)}")
        else:
            run.section.equal(f"{key} is announced", our.get(key), value)
    stale = sorted(set(DECLINED) - set(theirs))
    run.section.check("no capability is declined that stock does not have", not stale, str(stale))


def announced(port: int) -> Dict[str, Any]:
    """Returns the capabilities of the server at a port."""
    client = Client(port)
    try:
        answer = client.initialize()
    finally:
        client.close()
    return answer["result"]["environmentInfo"]["capabilities"]


@contextmanager
def stock_server(run: Run) -> Iterator[Server]:
    """Starts the CLI's own server, without its launcher."""
    command = [str(executable_of(run.setup.codex)), "exec-server"]
    server = Server(command, run.nonce, run.folder, "stock-server")
    try:
        yield server
    finally:
        server.stop()


ALL = {each.__name__: each for each in (flags, capabilities)}
