"""The shell tools of the CLI: choosing one of those it offers, calling it, reading its output.

The CLI decides by model and features which it offers: `exec_command` with `write_stdin` (unified
exec); `exec`, a JavaScript cell in which these two are functions (code mode); or one of
`shell_command`, `shell`, `local_shell`, which only run to the end.
Not here: what is run (`conversations`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Generator, List, Optional

from model import Item

# How many times a running command is polled before the conversation gives up on it.
POLLS = 12


# Large enough that a command's output, as JSON, is never cut short inside a cell.
PRAGMA = '// @exec: {"yield_time_ms": 60000, "max_output_tokens": 20000}'


class NoShell(Exception):
    """The CLI offers no tool that runs commands."""


class StillRunning(Exception):
    """A command did not end within its polls."""


@dataclass
class Result:
    """What the CLI tells the model about a command."""

    output: str
    exit_code: Optional[int]
    session: Optional[int]
    text: str


Step = Generator[List[Item], Dict[str, Any], Any]


class Shell:
    """Calls the shell tool that a request of the CLI offers."""

    def __init__(self, offered: List[Item]) -> None:
        names = [tool.get("name") or tool.get("type") for tool in offered]
        order = ("exec_command", "exec", "shell_command", "shell", "local_shell")
        self.name = next((name for name in order if name in names), None)
        if self.name is None:
            raise NoShell(f"none of {', '.join(order)} among the tools {names}")
        self.interactive = self.name == "exec" or "write_stdin" in names
        self._calls = 0

    def run(self, command: str, **options: Any) -> Step:
        """Runs one command to its end."""
        return (yield from self.run_all([command], **options))[0]

    def run_all(self, commands: List[str], **options: Any) -> Step:
        """Runs commands that the model asks for in one turn, each to its end."""
        results = yield from self._call([self._command(each, options) for each in commands])
        for index, result in enumerate(results):
            results[index] = yield from self.finish(result)
        return results

    def start(self, command: str, **options: Any) -> Step:
        """Starts a command and returns what it did until the CLI yields."""
        return (yield from self._call([self._command(command, options)]))[0]

    def write(self, session: int, chars: str, wait_ms: int = 1000) -> Step:
        """Writes to the terminal of a running command."""
        arguments = {"session_id": session, "chars": chars, "yield_time_ms": wait_ms}
        return (yield from self._call([self._unified("write_stdin", arguments)]))[0]

    def finish(self, result: Result) -> Step:
        """Polls a command until it ends; its output follows what `result` has."""
        for _ in range(POLLS):
            if result.session is None:
                return result
            result = yield from self._poll(result)
        raise StillRunning(f"the command runs on: {result.text}")

    def until(self, result: Result, shown: str) -> Step:
        """Polls a command until its output ends with `shown`, or it ends, or nothing comes."""
        for _ in range(POLLS):
            if result.session is None or result.output.endswith(shown):
                break
            result = yield from self._poll(result)
        return result

    def _poll(self, result: Result) -> Step:
        more = yield from self.write(result.session, "", wait_ms=5000)
        return Result(result.output + more.output, more.exit_code, more.session, more.text)

    def _call(self, items: List[Item]) -> Step:
        outputs = yield items
        return [parse(outputs[item["call_id"]]) for item in items]

    def _command(self, command: str, options: Dict[str, Any]) -> Item:
        if self.name in ("exec_command", "exec"):
            return self._unified("exec_command", {"cmd": command, **options})
        if self.name == "shell_command":
            return self._function(self.name, {"command": command})
        argv = ["bash", "-c", command]
        if self.name == "shell":
            return self._function(self.name, {"command": argv})
        action = {"type": "exec", "command": argv}
        call = {"type": "local_shell_call", "call_id": self._id(), "status": "completed"}
        return {**call, "action": action}

    def _unified(self, name: str, arguments: Item) -> Item:
        if self.name != "exec":
            return self._function(name, arguments)
        cell = f"{PRAGMA}\ntext(JSON.stringify(await tools.{name}({json.dumps(arguments)})));"
        return custom_call(self._id(), "exec", cell)

    def _function(self, name: str, arguments: Item) -> Item:
        return function_call(self._id(), name, arguments)

    def _id(self) -> str:
        self._calls += 1
        return f"call_{self._calls}"


def function_call(call: str, name: str, arguments: Item) -> Item:
    """Returns the model's call of a function."""
    item = {"type": "function_call", "id": f"fc_{call}", "call_id": call, "name": name}
    return {**item, "arguments": json.dumps(arguments)}


def custom_call(call: str, name: str, text: str) -> Item:
    """Returns the model's call of a tool that takes plain text."""
    item = {"type": "custom_tool_call", "id": f"ctc_{call}", "call_id": call, "name": name}
    return {**item, "input": text}


def offered_tools(request: Item) -> List[Item]:
    """Returns the tools of a request: its own, those among its input, those in namespaces."""
    tools = list(request.get("tools", []))
    for item in request.get("input", []):
        if item.get("type") == "additional_tools":
            tools += item.get("tools", [])
    inner = [each for tool in tools if tool.get("type") == "namespace" for each in tool["tools"]]
    return tools + inner


def parse(output: Any) -> Result:
    """Reads a tool output in any of the forms that the tools give."""
    if isinstance(output, list):
        output = "".join(part.get("text", "") for part in output)
    text = str(output)
    head, _, body = text.partition("Output:\n")
    if head.startswith("Script completed") and body.startswith("{"):
        fields = json.loads(body)
        code, session = fields.get("exit_code"), fields.get("session_id")
        return Result(fields["output"], code, session, text)
    if text.startswith("{"):
        fields = json.loads(text)
        return Result(fields.get("output", ""), fields["metadata"]["exit_code"], None, text)
    code = re.search(r"(?:exited with code|Exit code:) (-?\d+)", head)
    session = re.search(r"running with session ID (\d+)", head)
    return Result(
        output=body,
        exit_code=int(code.group(1)) if code else None,
        session=int(session.group(1)) if session else None,
        text=text,
    )
