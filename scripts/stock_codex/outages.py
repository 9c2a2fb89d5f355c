"""What the CLI and our client make of servers that are away, or that they are told to leave.

Not here: how long either of them waits (`timers`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import cli
from scenarios import Run, url_of
from server import clean_environment
from surface import stock_server

# Since this release the CLI looks for its server for 45 s; before, for 25 s.
PATIENT_SINCE = (0, 169, 0)
LONG_OUTAGE = 40.0
SHORT_OUTAGE = 20.0
ENDS_WITHIN = 15.0
# What `timeout` exits with when the time is up.
TIMED_OUT = 124


def outage(run: Run) -> None:
    """The server is away for 40 s, in which the command ends; the CLI gets all of it."""
    patient = run.setup.version >= PATIENT_SINCE
    seconds = LONG_OUTAGE if patient else SHORT_OUTAGE
    with run.server() as server, run.front(server) as proxy:
        conversation = run.talk.through_an_outage(proxy.cut, seconds)
        run.converse(conversation, cli.Home(), url_of(proxy.port))
        run.section.equal("the CLI came back once", proxy.connections, 2)


def timeout_run(run: Run) -> None:
    """`timeout 3 exec-server run` on a stock server ends in time, and so does the command."""
    with stock_server(run) as stock:
        url = url_of(stock.port)
        marker = run.folder / "work" / "still-running"
        script = f"while :; do touch {marker}; sleep 0.2; done"
        ours = [str(run.setup.ours), "run", "--env", url, "--", "sh", "-c", script]
        start = time.monotonic()
        process = subprocess.Popen(
            ["timeout", "3", *ours],
            cwd=run.folder / "host",
            env=clean_environment(run.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=ENDS_WITHIN)
            got = (process.returncode, output)
        except subprocess.TimeoutExpired:
            # `timeout` is the leader of the session that we made for both.
            os.killpg(process.pid, signal.SIGKILL)
            got = (None, process.communicate()[0])
        took = time.monotonic() - start
        name = f"it ends within {ENDS_WITHIN:.0f} s"
        run.section.check(name, got[0] == TIMED_OUT, f"{got} after {took:.1f} s")
        run.section.check("the command ran", marker.exists(), "no file")
        run.section.check("the command has ended", stays_away(marker), "it still runs")


def stays_away(marker: Path) -> bool:
    """Tells whether a file that the command keeps making stays away within a few seconds."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        marker.unlink(missing_ok=True)
        time.sleep(1.0)
        if not marker.exists():
            return True
    return False


ALL = {each.__name__.replace("_", "-"): each for each in (outage, timeout_run)}
