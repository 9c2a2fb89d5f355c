#!/usr/bin/env python3
"""Writes `docs/sdk-python-api.md`, the API reference, from the docstrings of the package.

Fails if something public has no docstring. With `--check` it writes nothing, and fails if the file
is not what it would write.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import exec_server

ROOT = Path(__file__).resolve().parents[3]
TARGET = ROOT / "docs" / "sdk-python-api.md"
WIDTH = 100

HEADER = """# The Python client: API reference

<!-- Generated from the docstrings by sdk/python/scripts/api_reference.py: do not edit. -->

Everything that `exec_server` exports. [The guide](sdk-python.md) shows how to use it.
`AsyncEnvironment` has the methods of `Environment`, to be awaited; they are listed once.
"""

SECTIONS: List[Tuple[str, List[str]]] = [
    ("Environments", ["Environment", "AsyncEnvironment"]),
    ("Processes", ["Process", "AsyncProcess", "InputStream", "OutputStream"]),
    ("Files and watches", ["AsyncFile", "Watch", "AsyncWatch"]),
    ("Tunnels", ["Tunnel", "AsyncTunnel", "Listener", "AsyncListener", "Forward", "AsyncForward"]),
    ("Sandboxes", ["SandboxPolicy", "Entry"]),
]


def prose(text: str) -> str:
    """Returns a docstring as Markdown."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    text = re.sub(r"^(>>> .*|\.\.\. .*)$", r"    \1", text, flags=re.M)
    lines: List[str] = []
    section = ""
    for line in inspect.cleandoc(text).splitlines():
        if line in ("Args:", "Raises:"):
            section = line[:-1]
            lines += [{"Args": "Parameters:", "Raises": "Errors:"}[section], ""]
        elif section and re.match(r"    \w+: ", line):
            name, meaning = line.strip().split(": ", 1)
            lines.append(f"- `{name}`: {meaning}")
        elif section and line.startswith("        "):
            lines[-1] += " " + line.strip()
        else:
            if section and line:
                section = ""
            lines.append(line)
    return "\n".join(wrap(line) for line in lines).strip()


def wrap(line: str) -> str:
    if len(line) <= WIDTH or line.startswith("    "):
        return line
    indent = "  " if line.startswith("- ") else ""
    return "\n".join(
        textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    )


def documentation(name: str, value: Any) -> str:
    text = inspect.getdoc(value) if not isinstance(value, property) else inspect.getdoc(value.fget)
    if not text:
        raise SystemExit(f"`{name}` has no docstring")
    return prose(text)


def signature(name: str, function: Any, is_async: bool) -> str:
    """Returns a signature, a parameter a line if it is long."""
    parameters = []
    star = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parameters.append("*")
            star = True
        parameters.append(str(parameter).replace("'", "").replace("typing.", ""))
    result = inspect.signature(function).return_annotation
    returns = "" if result is inspect.Signature.empty else f" -> {result}".replace("'", "")
    start = f"{'async ' if is_async else ''}{name}("
    line = f"{start}{', '.join(parameters)}){returns}"
    if len(line) > WIDTH - 4:
        line = start + "\n    " + ",\n    ".join(parameters) + f",\n){returns}"
    return re.sub(r"<object object at \w+>", "…", line)


def members(kind: type) -> Iterator[Tuple[str, Any]]:
    """Yields the public methods and properties of a class, in the order of its source."""
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("exec_server"):
            continue
        for name, value in vars(base).items():
            is_method = inspect.isfunction(value) or isinstance(value, (classmethod, property))
            if is_method and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def attributes(kind: type) -> Iterator[Tuple[str, str]]:
    """Yields the attributes that comments with `#:` document."""
    for base in kind.__mro__:
        if not base.__module__.startswith("exec_server"):
            continue
        lines: List[str] = []
        for line in inspect.getsource(base).splitlines():
            text = line.strip()
            if text.startswith("#: "):
                lines.append(text[3:])
                continue
            match = re.match(r"(?:self\.)?(\w+)\s*[:=]", text)
            if lines and match and not match[1].startswith("_"):
                yield match[1], " ".join(lines)
            lines = []


def render(name: str) -> str:
    value = getattr(exec_server, name)
    if not inspect.isclass(value):
        text = f"### {name}\n\n"
        if inspect.isfunction(value):
            text += f"```text\n{signature(name, value, False)}\n```\n\n"
            return text + documentation(name, value) + "\n"
        return ""
    parts = [f"### {name}\n", documentation(name, value) + "\n"]
    fields = list(dict(attributes(value)).items())
    for field, meaning in fields:
        parts.append(wrap(f"- `{field}`: {prose(meaning)}"))
    if fields:
        parts.append("")
    if name == "AsyncEnvironment":
        parts = parts[:2]
        sync = dict(members(exec_server.Environment))
        names = ", ".join(f"`{method}`" for method, _ in members(value) if method in sync)
        parts.append(wrap(f"Methods as above, to be awaited: {names}.") + "\n")
        return "\n".join(parts)
    for method, member in members(value):
        full = f"{name}.{method}"
        text = documentation(full, member)
        if isinstance(member, property):
            result = str(member.fget.__annotations__.get("return", "")).replace("'", "")
            parts.append(f"```text\n{full}: {result}\n```\n\n{text}\n")
        else:
            function = member.__func__ if isinstance(member, classmethod) else member
            is_async = inspect.iscoroutinefunction(function)
            parts.append(f"```text\n{signature(full, function, is_async)}\n```\n\n{text}\n")
    return "\n".join(parts)


def generate() -> str:
    exported = [name for name in exec_server.__all__ if not name.startswith("__")]
    sections = [(title, [name for name in names if name in exported]) for title, names in SECTIONS]
    listed = {name for _, names in sections for name in names}
    rest = [name for name in exported if name not in listed]
    values = [getattr(exec_server, name) for name in rest]
    errors = [
        name
        for name, value in zip(rest, values)
        if inspect.isclass(value) and issubclass(value, BaseException)
    ]
    functions = [name for name, value in zip(rest, values) if inspect.isfunction(value)]
    others = [
        name
        for name, value in zip(rest, values)
        if inspect.isclass(value) and name not in errors
    ]
    sections += [("Values", others), ("Functions", functions), ("Errors", errors)]
    parts = [HEADER]
    for title, names in sections:
        if names:
            parts.append(f"## {title}\n")
            parts += [render(name) for name in names]
    text = "\n".join(parts)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def main() -> int:
    text = generate()
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() == text:
            return 0
        print(f"{TARGET.name} is out of date: run scripts/api_reference.py", file=sys.stderr)
        return 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
