"""`scripts/stock-codex`: proves that the stock Codex CLI works against our server.

It installs the oldest supported and the newest release of the CLI from npm, starts our server, plays
the model on loopback and checks what the CLI reports of the commands and files that the model asks
for. And it proves that our client works against the CLI's own server, with the conformance suite. No
account and no other host is needed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import List, Optional, Tuple

import binaries
import clients
import conformance
import env_add
import escalation
import file_scenarios
import outages
import parity
import remote
import sandbox_scenarios
import scenarios
import ssh_target
import surface
import timers
import validate_401
from members import Members
from proxy import Trace
from report import Report, Table
from scenarios import Run, Setup
from server import StartFailed

ALL = {
    **scenarios.ALL,
    **file_scenarios.ALL,
    **sandbox_scenarios.ALL,
    **escalation.ALL,
    **outages.ALL,
    **surface.ALL,
    **timers.ALL,
    **parity.ALL,
    **remote.ALL,
    **ssh_target.ALL,
    **validate_401.ALL,
    **conformance.ALL,
    **clients.ALL,
    **env_add.ALL,
}
BEYOND_STOCK = (*file_scenarios.BEYOND_STOCK, *sandbox_scenarios.BEYOND_STOCK)


def main() -> int:
    """Runs the scenarios with every release; 0 if all checks pass, 1 if not."""
    options = parse_arguments()
    report, table = Report(), Table()
    trace = Trace(options.trace) if options.trace else None
    try:
        binaries.check_cache()
        ours = (options.server or binaries.build_server()).absolute()
        for codex in releases(options):
            run_release(codex, ours, options, report, table, trace)
    except binaries.Missing as error:
        print(f"stock-codex: {error}", file=sys.stderr)
        return 1
    print(table.text())
    print(report.summary())
    return 1 if report.failed or not report.passed else 0


def releases(options: argparse.Namespace) -> List[Path]:
    """Returns the CLIs to run, each release once."""
    if options.codex:
        return [options.codex.absolute()]
    wanted = options.codex_version or [binaries.OLDEST, binaries.NEWEST]
    numbers = [binaries.resolve_version(version) for version in wanted]
    return [binaries.install_codex(number).absolute() for number in dict.fromkeys(numbers)]


def run_release(
    codex: Path,
    ours: Path,
    options: argparse.Namespace,
    report: Report,
    table: Table,
    trace: Optional[Trace],
) -> None:
    """Runs the scenarios with one release."""
    release = version_of(codex)
    if options.control:
        server, name = [str(codex), "exec-server"], "its own exec-server"
    else:
        server, name = [str(ours)], version_of(ours)
    print(f"{release} against {name}", flush=True)
    members = Members()
    setup = Setup(codex, numbers_of(release), server, ours, report, trace, members)
    for name in options.scenarios or default_scenarios(options.control):
        before, start = (report.passed, report.failed), time.monotonic()
        run = Run(setup, name)
        try:
            ALL[name](run)
        except StartFailed as error:
            report.record(f"{name}: the server starts", False, str(error))
        passed, failed = report.passed - before[0], report.failed - before[1]
        table.add(name, release, passed, failed, time.monotonic() - start)
        if failed or options.keep:
            print(f"      logs: {run.folder}", flush=True)
        else:
            shutil.rmtree(run.folder, ignore_errors=True)
    if members.has_seen():
        failed, start = report.failed, time.monotonic()
        members.check(report.section("members"), options.update_members)
        failed = report.failed - failed
        table.add("members", release, 1 - failed, failed, time.monotonic() - start)


def default_scenarios(control: bool) -> List[str]:
    """Returns what runs if no scenario is named; as a control, what the CLI's own server passes."""
    return [name for name in ALL if not control or name not in BEYOND_STOCK]


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/stock-codex",
        description="Proves that the stock Codex CLI works on commands and files of exec-server, "
        "and our client on those of the CLI's own server.",
        epilog="Exit status: 0 if every check passes, 1 if one fails, 2 for a wrong command line.",
    )
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(ALL)} [default: all]")
    add("--codex", type=program, metavar="PATH", help="CLI to run [default: installed by npm]")
    add(
        "--codex-version",
        action="append",
        metavar="VERSION",
        help="what npm installs, a number or a tag; may be repeated "
        f"[default: {binaries.OLDEST} and {binaries.NEWEST}]",
    )
    add("--server", type=program, metavar="PATH", help="our server [default: the release build]")
    add("--control", action="store_true", help="runs the CLI against its own server instead of ours")
    add("--trace", type=Path, metavar="FILE", help="records the JSON-RPC messages (not of stdio)")
    add(
        "--update-members",
        action="store_true",
        help="adds methods and members that are new to the committed list",
    )
    add("--keep", action="store_true", help="keeps the folders of scenarios that pass, too")
    options = parser.parse_args()
    for name in options.scenarios:
        if name not in ALL:
            parser.error(f"no scenario `{name}`; there are {', '.join(ALL)}")
    return options


def program(text: str) -> Path:
    """Returns the path of a program that exists, here or on `PATH`."""
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"`{text}` is not a program")
    return Path(found)


def numbers_of(release: str) -> Tuple[int, ...]:
    """Returns the numbers of a release, to compare it with others."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", release)
    return tuple(int(number) for number in found.groups()) if found else (0, 0, 0)


def version_of(path: Path) -> str:
    """Returns what a program says to `--version`, which also tells that it runs here."""
    try:
        ended = subprocess.run(
            [str(path), "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise binaries.Missing(f"{path} does not run: {error}") from error
    if ended.returncode != 0:
        raise binaries.Missing(f"{path} --version fails: {ended.stdout.strip()}")
    return ended.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
