"""The conformance suite: our client against the CLI's own exec-server.

The suite is a test of the workspace, built and run by cargo. What the CLI's server does otherwise is
declared there, and cases that meet such a difference assert it and say so.
Not here: what is declared (`crates/testing/conformance/src/difference.rs`).
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import Dict, Set

from binaries import ROOT, Missing, executable_of
from scenarios import Run

# Most cases wait; more of them at once than there are cores.
THREADS = 6
ENDS_WITHIN = 1800.0
OUTCOME = re.compile(r"^test (\w+)::(\w+) \.\.\. (\w+)$", re.MULTILINE)
SECTION = re.compile(r"^---- (\w+)::(\w+) stdout ----\n(.*?)(?=^---- |^failures:|\Z)", re.M | re.S)
DECLARED = "declared difference:"


def conformance(run: Run) -> None:
    """Every case of the suite passes, over each transport that the CLI's server has."""
    command = ["cargo", "test", "--package", "exec-conformance", "--features", "stock"]
    command += ["--test", "remote_stock", "--no-fail-fast", "--", "--show-output"]
    command += [f"--test-threads={THREADS}"]
    try:
        environment = {**os.environ, "EXEC_CONFORMANCE_STOCK": str(executable_of(run.setup.codex))}
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={**environment, "RUST_BACKTRACE": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            timeout=ENDS_WITHIN,
        )
    except (Missing, OSError, subprocess.TimeoutExpired) as error:
        run.section.check("the suite runs to its end", False, str(error))
        return
    (run.folder / "conformance.log").write_text(ended.stdout, encoding="utf-8")
    passed: Dict[str, Set[str]] = {}
    failed: Dict[str, Set[str]] = {}
    for suite, case, outcome in OUTCOME.findall(ended.stdout):
        (passed if outcome == "ok" else failed).setdefault(suite, set()).add(case)
    differing: Dict[str, Set[str]] = {}
    details: Dict[str, str] = {}
    for suite, case, text in SECTION.findall(ended.stdout):
        details[f"{suite}::{case}"] = text
        if DECLARED in text:
            differing.setdefault(suite, set()).add(case)
    for suite, cases in sorted(failed.items()):
        for case in sorted(cases):
            run.section.check(f"{suite}::{case}", False, details.get(f"{suite}::{case}", ""))
    for suite, cases in sorted(passed.items()):
        declared = len(differing.get(suite, set()) & cases)
        counts = f"{len(cases)} of {len(cases | failed.get(suite, set()))} cases pass"
        name = f"{suite}: {counts}, {declared} of them assert a declared difference"
        run.section.check(name, suite not in failed)
    good = ended.returncode == 0 and bool(passed)
    tail = "\n".join(ended.stdout.splitlines()[-12:])
    run.section.check("the suite runs to its end", good or bool(failed), tail)


ALL = {"conformance": conformance}
