"""The clients of other languages against the CLI's own exec-server: the shared cases of `sdk/cases`
that are marked as `stock`. The first run installs what the client's tests need.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import List

from binaries import ROOT, Missing, executable_of
from scenarios import Run
from server import Server

ENDS_WITHIN = 300.0


def python_client(run: Run) -> None:
    """Every case that stock should pass does, in both forms of the Python client."""
    run_cases(run, ["sdk/python/scripts/test", "tests/test_cases.py"], r"(\d+) passed")


def typescript_client(run: Run) -> None:
    """Every case that stock should pass does in the TypeScript client."""
    run_cases(run, ["sdk/typescript/scripts/test", "cases"], r"pass (\d+)")


def run_cases(run: Run, command: List[str], count: str) -> None:
    """Runs a client's test command against the CLI's server; `count` matches what has passed."""
    try:
        server = Server([str(executable_of(run.setup.codex)), "exec-server"], "", run.folder, "stock")
    except (Missing, OSError) as error:
        run.section.check("the CLI's server starts", False, str(error))
        return
    try:
        url = server.first_line()
        run.section.check("the CLI's server starts", url is not None)
        ended = subprocess.run(
            [str(ROOT / command[0]), *command[1:]],
            env={**os.environ, "EXEC_SERVER_TEST_STOCK_URL": url or "", "TEST_REPORTER": "spec"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            timeout=ENDS_WITHIN,
        )
        passed = re.search(count, ended.stdout)
        name = f"{passed[1] if passed else 0} cases pass"
        tail = "\n".join(ended.stdout.splitlines()[-20:])
        run.section.check(name, ended.returncode == 0 and passed is not None, tail)
    except subprocess.TimeoutExpired as error:
        run.section.check("the cases end", False, str(error))
    finally:
        server.stop()


ALL = {"python-client": python_client, "typescript-client": typescript_client}
