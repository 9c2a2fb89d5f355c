"""The checks of a run: one line for each, a count at the end.

Not here: what is checked (`conversations`).
"""

from __future__ import annotations

import threading
from typing import Dict, List, Tuple


class Report:
    """Prints and counts checks; any thread may call it."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self._lock = threading.Lock()

    def section(self, name: str) -> "Section":
        """Returns a view whose lines start with `name`."""
        return Section(self, name)

    def record(self, name: str, good: bool, detail: str) -> None:
        """Prints one check; `detail` is shown only if it failed."""
        with self._lock:
            if good:
                self.passed += 1
                print(f"ok    {name}", flush=True)
            else:
                self.failed += 1
                print(f"FAIL  {name}", flush=True)
                for line in detail.splitlines():
                    print(f"      {line}", flush=True)

    def summary(self) -> str:
        """Returns the last line of a run."""
        return f"{self.passed} passed, {self.failed} failed"


class Table:
    """What became of every scenario with every release."""

    def __init__(self) -> None:
        self._releases: List[str] = []
        self._cells: Dict[str, Dict[str, str]] = {}
        self._sums: Dict[str, Tuple[int, int]] = {}

    def add(self, scenario: str, release: str, passed: int, failed: int, seconds: float) -> None:
        """Adds the counts of one scenario with one release."""
        if release not in self._releases:
            self._releases.append(release)
        wrong = f"**{failed} failed**, " if failed or not passed else ""
        cell = f"{wrong}{passed} ok, {seconds:.0f} s"
        self._cells.setdefault(scenario, {})[release] = cell
        before = self._sums.get(release, (0, 0))
        self._sums[release] = (before[0] + passed, before[1] + failed)

    def text(self) -> str:
        """Returns it in Markdown, one column for each release."""
        lines = [f"| Scenario | {' | '.join(self._releases)} |"]
        lines.append("|---" * (len(self._releases) + 1) + "|")
        for scenario, cells in self._cells.items():
            row = [cells.get(release, "not run") for release in self._releases]
            lines.append(f"| {' | '.join([scenario, *row])} |")
        sums = [self._sums[release] for release in self._releases]
        totals = [f"{passed} ok, {failed} failed" for passed, failed in sums]
        lines.append(f"| {' | '.join(['all', *totals])} |")
        return "\n".join(lines)


class Section:
    """The checks of one scenario."""

    def __init__(self, report: Report, name: str) -> None:
        self._report = report
        self._name = name

    def check(self, name: str, good: bool, detail: str = "") -> None:
        """Records whether `name` holds."""
        self._report.record(f"{self._name}: {name}", good, detail)

    def equal(self, name: str, got: object, expected: object) -> None:
        """Records whether `got` is `expected`, and shows both if not."""
        self.check(name, got == expected, f"expected {shorten(expected)}\ngot      {shorten(got)}")


def shorten(value: object) -> str:
    """Returns `value` for a person to read, its middle left out if it is long."""
    text = repr(value)
    if len(text) <= 600:
        return text
    return f"{text[:300]} … {text[-300:]} ({len(text)} characters)"
