"""The checks of a run: one line for each, a count at the end.

Not here: what is checked (`conversations`).
"""

from __future__ import annotations

import threading


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
