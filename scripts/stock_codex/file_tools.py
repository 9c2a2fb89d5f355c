"""The file tools of the CLI: `apply_patch` and `view_image`, in the form that it offers them.

A patch goes through the tool `apply_patch`; a model without it writes the same as a shell command,
which the CLI takes for itself and does not run; in code mode both tools are functions.
Not here: which patches, which images (`file_conversations`).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Generator, List, Optional

from model import Item
from tools import custom_call, function_call

Step = Generator[List[Item], Any, Any]


class NoFileTool(Exception):
    """The CLI offers no tool for what a conversation wants to do."""


@dataclass
class Outcome:
    """What the CLI tells the model about a patch or an image."""

    good: bool
    text: str
    image: Optional[bytes] = None


class FileTools:
    """Calls the file tools that a request of the CLI offers."""

    def __init__(self, offered: List[Item], calls: str = "file") -> None:
        self._names = [tool.get("name") for tool in offered]
        # Apart from the ids that others give in the same conversation, such as `tools.Shell`.
        self._prefix = calls
        self._calls = 0

    @property
    def patches(self) -> str:
        """Returns the tool that patches go through."""
        for name in ("apply_patch", "exec", "exec_command"):
            if name in self._names:
                return name
        raise NoFileTool(f"nothing applies a patch among the tools {self._names}")

    def patch(self, patch: str) -> Step:
        """Applies one patch."""
        if self.patches == "apply_patch":
            return (yield from self._call(self._custom("apply_patch", patch)))
        if self.patches == "exec":
            cell = f"text(JSON.stringify(await tools.apply_patch({json.dumps(patch)})));"
            return (yield from self._cell(cell))
        command = f"apply_patch <<'EOF'\n{patch}EOF\n"
        return (yield from self._call(self._function("exec_command", {"cmd": command})))

    def view(self, path: str) -> Step:
        """Shows one image to the model."""
        arguments = {"path": path}
        if "view_image" in self._names:
            return (yield from self._call(self._function("view_image", arguments)))
        if "exec" in self._names:
            cell = f"image(await tools.view_image({json.dumps(arguments)}));"
            return (yield from self._cell(cell))
        raise NoFileTool(f"nothing shows an image among the tools {self._names}")

    def _cell(self, script: str) -> Step:
        return (yield from self._call(self._custom("exec", script)))

    def _call(self, item: Item) -> Step:
        outputs = yield [item]
        return outcome(outputs[item["call_id"]])

    def _custom(self, name: str, text: str) -> Item:
        return custom_call(self._id(), name, text)

    def _function(self, name: str, arguments: Item) -> Item:
        return function_call(self._id(), name, arguments)

    def _id(self) -> str:
        self._calls += 1
        return f"{self._prefix}_{self._calls}"


def outcome(output: Any) -> Outcome:
    """Reads a tool output: text, or parts of which one may be an image."""
    parts = output if isinstance(output, list) else [{"type": "input_text", "text": str(output)}]
    text = "".join(part.get("text", "") for part in parts)
    urls = [part["image_url"] for part in parts if part.get("type") == "input_image"]
    image = base64.b64decode(urls[0].partition(";base64,")[2]) if urls else None
    done = "Success. Updated the following files:" in text or text.startswith("Script completed")
    return Outcome(done or image is not None, text, image)
