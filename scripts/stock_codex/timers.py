"""How long things are kept: measured on the stock server and client, then on ours.

Not here: what a client does with what was kept (`outages`).
"""

from __future__ import annotations

import subprocess
import threading
import time
from typing import Callable, Dict, List

import cli
from asking import Client
from conversations import ANSWER
from model import Conversation, Item
from proxy import Proxy
from scenarios import Run, url_of
from server import clean_environment
from surface import stock_server
from tools import POLLS, Shell, offered_tools

# Sessions are tried at 2, 7, 12 … seconds, so that no round number is a matter of luck.
FIRST_TRY = 2.0
STEP = 5.0
# Longer than every release keeps anything.
LONGEST = 122.0
SLACK = 1.0
START = {
    "processId": "p",
    "argv": ["true"],
    "env": {"PATH": "/usr/bin:/bin"},
    "tty": False,
}


def timers(run: Run) -> None:
    """Ours keeps sessions and closed processes, and looks for a lost server, as long as stock."""
    measured: Dict[str, float] = {}
    with stock_server(run) as stock, run.server() as ours:
        work: List[threading.Thread] = []

        def measure(name: str, function: Callable[[], float]) -> None:
            thread = threading.Thread(target=lambda: measured.update({name: function()}))
            thread.start()
            work.append(thread)

        measure("stock client", lambda: stock_recovery(run, stock.port))
        measure("our client", lambda: our_recovery(run, stock.port))
        for whose, port in (("stock", stock.port), ("our", ours.port)):
            measure(f"{whose} session", lambda port=port: session_retention(port))
            measure(f"{whose} process", lambda port=port: process_retention(run, port))
        for thread in work:
            thread.join()
    for what in ("session", "process", "client"):
        theirs, our = measured.get(f"stock {what}"), measured.get(f"our {what}")
        figures = f"stock {seconds(theirs)}, ours {seconds(our)}"
        good = theirs is not None and our is not None and theirs > 0 and our >= theirs - SLACK
        name = {
            "session": "a detached session is kept as long",
            "process": "a closed process is kept as long",
            "client": "our client looks for its server as long",
        }[what]
        run.section.check(f"{name} ({figures})", good, figures)


def seconds(value: object) -> str:
    """Returns a measured time for people."""
    return f"{value:.0f} s" if isinstance(value, float) else "nothing measured"


def session_retention(port: int) -> float:
    """Returns the last of the tried times after which a detached session could be resumed."""
    tries = [FIRST_TRY + STEP * each for each in range(int((LONGEST - FIRST_TRY) / STEP) + 1)]
    sessions = []
    for _ in tries:
        client = Client(port)
        sessions.append(client.initialize()["result"]["sessionId"])
        client.close()
    detached = time.monotonic()
    kept = 0.0
    for after, session in zip(tries, sessions):
        time.sleep(max(0.0, detached + after - time.monotonic()))
        client = Client(port)
        answer = client.initialize(session)
        client.close()
        if "error" in answer:
            break
        kept = after
    return kept


def process_retention(run: Run, port: int) -> float:
    """Returns for how long a closed process could be read."""
    client = Client(port)
    client.initialize()
    client.ask("process/start", {**START, "cwd": (run.folder / "host").as_uri()})
    read = {"processId": "p", "waitMs": 5000}
    while not client.ask("process/read", read)["result"]["closed"]:
        pass
    closed = time.monotonic()
    kept = 0.0
    while kept < LONGEST and "result" in client.ask("process/read", {"processId": "p"}):
        kept = time.monotonic() - closed
        time.sleep(0.5)
    client.close()
    return kept


def stock_recovery(run: Run, port: int) -> float:
    """Returns for how long the CLI tries to connect again."""
    proxy = Proxy(run.name, port, [])
    try:
        run.converse(until_given_up(proxy), cli.Home(), url_of(proxy.port))
        return proxy.tried_for()
    finally:
        proxy.close()


def until_given_up(proxy: Proxy) -> Callable[[Item], Conversation]:
    """Runs a command whose server goes away for good."""

    def conversation(request: Item) -> Conversation:
        shell = Shell(offered_tools(request))
        result = yield from shell.start("sleep 300", yield_time_ms=1000)
        proxy.cut(LONGEST * 2)
        for _ in range(POLLS * 2):
            if result.session is None:
                break
            result = yield from shell.write(result.session, "", wait_ms=5000)
        return ANSWER

    return conversation


def our_recovery(run: Run, port: int) -> float:
    """Returns for how long our client tries to connect to a stock server again."""
    proxy = Proxy(run.name, port, [])
    command = [str(run.setup.ours), "run", "--env", url_of(proxy.port), "--", "sleep", "300"]
    try:
        process = subprocess.Popen(
            command,
            cwd=run.folder / "host",
            env=clean_environment(run.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            proxy.wait_for_connection()
            # The command has to run before the connection can be lost.
            time.sleep(2.0)
            proxy.cut(LONGEST * 2)
            process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
            process.wait()
        return proxy.tried_for()
    finally:
        proxy.close()


ALL = {"timers": timers}
