"""`scripts/stock-codex`: proves that the stock Codex CLI works against our server.

It installs the CLI from npm, starts our server, plays the model on loopback and checks what the
CLI reports of the commands and files that the model asks for. And it proves that our client works
against the CLI's own server, with the conformance suite. No account and no other host is needed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

import binaries
import conformance
import env_add
import file_scenarios
import parity
import remote
import sandbox_scenarios
import scenarios
import validate_401
from proxy import Trace
from report import Report
from scenarios import Run, Setup
from server import StartFailed

ALL = {
    **scenarios.ALL,
    **file_scenarios.ALL,
    **sandbox_scenarios.ALL,
    **parity.ALL,
    **remote.ALL,
    **validate_401.ALL,
    **conformance.ALL,
    **env_add.ALL,
}
BEYOND_STOCK = (*file_scenarios.BEYOND_STOCK, *sandbox_scenarios.BEYOND_STOCK)


def main() -> int:
    """Runs the scenarios; 0 if all checks pass, 1 if not."""
    options = parse_arguments()
    try:
        codex = options.codex or binaries.install_codex(options.codex_version)
        codex = codex.absolute()
        ours = (options.server or binaries.build_server()).absolute()
        if options.control:
            server, name = [str(codex), "exec-server"], "its own exec-server"
        else:
            server, name = [str(ours)], version_of(ours)
        print(f"{version_of(codex)} against {name}", flush=True)
    except binaries.Missing as error:
        print(f"stock-codex: {error}", file=sys.stderr)
        return 1
    trace = Trace(options.trace) if options.trace else None
    report = Report()
    setup = Setup(codex, server, ours, report, trace)
    for name in options.scenarios or default_scenarios(options.control):
        failed = report.failed
        run = Run(setup, name)
        try:
            ALL[name](run)
        except StartFailed as error:
            report.record(f"{name}: the server starts", False, str(error))
        if report.failed > failed or options.keep:
            print(f"      logs: {run.folder}", flush=True)
        else:
            shutil.rmtree(run.folder, ignore_errors=True)
    print(report.summary())
    return 1 if report.failed or not report.passed else 0


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
        default=binaries.CODEX_VERSION,
        metavar="VERSION",
        help="what npm installs, a number or a tag such as latest [default: %(default)s]",
    )
    either = parser.add_mutually_exclusive_group().add_argument
    either("--server", type=program, metavar="PATH", help="our server [default: the release build]")
    either("--control", action="store_true", help="runs against the CLI's own server instead")
    add("--trace", type=Path, metavar="FILE", help="records the JSON-RPC messages (not of stdio)")
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
