"""The JSON-RPC calls that an observed connection carries, each request with its answer.

Invariant: what the CLI has received is recorded, because the proxy shows a message before it
forwards it.
Not here: what the calls should have been (`file_conversations`).
"""

from __future__ import annotations

import base64
import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple
from urllib.parse import unquote, urlsplit

from model import Item

NOT_FOUND = -32004


@dataclass
class Call:
    """A request of the CLI and what the server answered."""

    method: str
    params: Item
    answer: Optional[Item] = None

    @property
    def path(self) -> Optional[Path]:
        """Returns the file that it is about."""
        uri = self.params.get("path")
        return Path(unquote(urlsplit(uri).path)) if uri else None

    @property
    def result(self) -> Any:
        """Returns the result, or none if it failed or is not answered."""
        return (self.answer or {}).get("result")

    @property
    def code(self) -> Optional[int]:
        """Returns the code of the error that it was answered with."""
        return (self.answer or {}).get("error", {}).get("code")

    @property
    def read(self) -> Optional[bytes]:
        """Returns the content that came back."""
        return decode(self.result or {})

    @property
    def written(self) -> Optional[bytes]:
        """Returns the content that was sent."""
        return decode(self.params)


class Wire:
    """Collects the calls and notifications of all connections of one scenario."""

    def __init__(self) -> None:
        self._calls: List[Call] = []
        self._open: Dict[Tuple[str, Any], Call] = {}
        self._events: List[Item] = []
        self._lock = threading.Lock()

    def observe(self, source: str, text: str) -> None:
        """Takes one message, as an observer of the proxy."""
        if not text.startswith("{"):
            return
        message = json.loads(text)
        connection, _, arrow = source.rpartition(" ")
        key = (connection, message.get("id"))
        with self._lock:
            if "method" not in message:
                call = self._open.pop(key, None)
                if call is not None:
                    call.answer = message
            elif "id" not in message:
                self._events.append(message)
            elif arrow == "->":
                call = Call(message["method"], message.get("params") or {})
                self._calls.append(call)
                self._open[key] = call

    def calls(self, *methods: str) -> List[Call]:
        """Returns the calls of these methods in their order; all calls if none is named."""
        with self._lock:
            return [call for call in self._calls if not methods or call.method in methods]

    def about(self, path: Path, *methods: str) -> List[Call]:
        """Returns the calls of these methods about one file."""
        return [call for call in self.calls(*methods) if call.path == path]

    def events(self, method: str) -> List[Item]:
        """Returns the parameters of the notifications of that name."""
        with self._lock:
            named = [each for each in self._events if each["method"] == method]
        return [each.get("params") or {} for each in named]

    def exited(self, command: str) -> Optional[Item]:
        """Returns how the last process that ran this shell command ended; none if it has not."""
        starts = [call for call in self.calls("process/start") if command in call.params["argv"]]
        last = starts[-1].params["processId"] if starts else None
        ends = [each for each in self.events("process/exited") if each["processId"] == last]
        return ends[0] if ends else None

    def failures(self) -> List[str]:
        """Returns the file calls that failed other than by a missing file."""
        files = [call for call in self.calls() if call.method.startswith("fs/")]
        wrong = [call for call in files if call.code not in (None, NOT_FOUND)]
        return [f"{call.method} {call.params.get('path')}: {call.answer}" for call in wrong]


def comes_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits for what the other side still has to send, and tells whether it came."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def decode(fields: Item) -> Optional[bytes]:
    """Returns the content of a file that a message carries."""
    data = fields.get("dataBase64")
    return None if data is None else base64.b64decode(data)
