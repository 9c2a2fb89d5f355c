"""The methods, members and capabilities that the stock peers use, against a committed list.

Messages of the CLI are recorded in every scenario whose connection can be seen; those of its server
in `stock-wire`, where the CLI talks to its own server. Anything that is not in `members.txt` fails:
a new release may need an answer that ours does not give yet. `--update-members` adds it.
Not here: what a member means.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

from report import Section

LIST = Path(__file__).resolve().parent / "members.txt"
HEAD = "# Methods and members that the stock peers send; written by --update-members.\n"
# Objects whose keys are data, not members.
MAPS = ("env", "set", "domains", "unixSockets", "credentialProviders", "mcp_servers")


class Members:
    """Collects what passes on the observed connections; any thread may call it."""

    def __init__(self) -> None:
        self._seen: Set[str] = set()
        self._asked: Dict[Tuple[str, Any], str] = {}
        self._lock = threading.Lock()

    def of_client(self, source: str, text: str) -> None:
        """Takes a message of either side and keeps what the client sent."""
        self._observe(source, text, ("->",))

    def of_both(self, source: str, text: str) -> None:
        """Takes a message of either side and keeps it."""
        self._observe(source, text, ("->", "<-"))

    def has_seen(self) -> bool:
        """Tells whether any connection was observed."""
        with self._lock:
            return bool(self._seen)

    def check(self, section: Section, update: bool) -> None:
        """Compares what was seen with the list, or adds it to the list."""
        with self._lock:
            seen = set(self._seen)
        known = read_list()
        new = sorted(seen - known)
        if update and new:
            LIST.write_text(HEAD + "".join(f"{line}\n" for line in sorted(seen | known)))
            print(f"      {len(new)} added to {LIST.name}", flush=True)
            new = []
        name = f"the {len(seen)} methods and members that the stock peers sent are all known"
        detail = "\n".join([*new, "see what they mean, then run with --update-members"])
        section.check(name, bool(seen) and not new, detail)

    def _observe(self, source: str, text: str, arrows: Tuple[str, ...]) -> None:
        if not text.startswith("{"):
            return
        message = json.loads(text)
        connection, _, arrow = source.rpartition(" ")
        with self._lock:
            kind = self._kind(connection, arrow, message)
            if arrow in arrows and kind is not None:
                body = {name: message[name] for name in BODIES if name in message}
                self._seen.add(f"{arrow} {kind}")
                self._seen.update(f"{arrow} {kind} {path}" for path in paths(body))

    def _kind(self, connection: str, arrow: str, message: Dict[str, Any]) -> Any:
        """Returns the method of a message, or that of the request that it answers."""
        key = (f"{connection} {arrow}", json.dumps(message.get("id")))
        if "method" in message:
            if "id" in message:
                self._asked[key] = message["method"]
            return message["method"]
        other = {"->": "<-", "<-": "->"}[arrow]
        # Not removed: the connection may have more than one observer.
        return self._asked.get((f"{connection} {other}", key[1]))


BODIES = ("params", "result", "error")


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Yields the path of every member of a message; elements of a list have one."""
    if isinstance(value, list):
        for each in value:
            yield from paths(each, f"{prefix}[]")
        return
    if not isinstance(value, dict):
        return
    named = prefix.rpartition(".")[2] not in MAPS
    for name, inner in value.items():
        path = f"{prefix}.{name if named else '*'}" if prefix else name
        yield path
        yield from paths(inner, path)


def read_list() -> Set[str]:
    """Returns the lines of the committed list."""
    lines: List[str] = LIST.read_text().splitlines() if LIST.exists() else []
    return {line for line in lines if line and not line.startswith("#")}
