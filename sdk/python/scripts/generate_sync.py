#!/usr/bin/env python3
"""Writes `_sync_methods.py`: the methods of `AsyncEnvironment` for ordinary code.

Signatures and documentation are taken over, so that both environments stay the same. With `--check`
it writes nothing and fails if the file is not what it would write.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "exec_server"
SOURCE = PACKAGE / "environment.py"
TARGET = PACKAGE / "_sync_methods.py"

#: What handles become: how they are wrapped, the type, and further parameters.
HANDLES = {
    "AsyncProcess": ("_process", "Process", ["text", "encoding", "errors"]),
    "AsyncFile": ("_file", "IO[bytes]", []),
    "AsyncWatch": ("_watch", "Watch", []),
    "AsyncTunnel": ("_stream", "Tunnel", []),
    "AsyncListener": ("_listener", "Listener", []),
    "AsyncForward": ("_forward", "Forward", []),
}
TEXT_PARAMETERS = [("text", "bool", False), ("encoding", "Optional[str]", None), ("errors", "Optional[str]", None)]
TEXT_DOCUMENTATION = """
            text: The streams are text, by default UTF-8.
            encoding: The encoding; implies `text`.
            errors: How invalid text is handled; implies `text`."""

HEADER = '''"""Generated from `environment.py` by `scripts/generate_sync.py`: do not edit."""

from __future__ import annotations

import os
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    Callable,
    Coroutine,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Type,
    TypeVar,
    Union,
)

from ._connector import TlsOption
from ._framing import Buffer
from ._loop_thread import LoopThread
from ._paths import RemotePath
from .environment import (
    AsyncEnvironment,
    Command,
    OutputTarget,
    ProcessReference,
    TerminalOption,
)
from .files import AsyncFile, AsyncWatch
from .process import AsyncProcess
from .sandbox import SandboxPolicy
from .tunnels import AsyncForward, AsyncListener, AsyncTunnel
from .types import (
    PIPE,
    CompletedProcess,
    DirectoryEntry,
    EnvironmentInfo,
    FindResult,
    Limits,
    ListeningPort,
    Metadata,
    ProcessInfo,
    SearchResult,
    WalkResult,
)

if TYPE_CHECKING:
    from .sync import Forward, Listener, Process, Tunnel, Watch

Self = TypeVar("Self", bound="EnvironmentMethods")


class EnvironmentMethods:
    """The methods of an environment."""

    _loop: LoopThread
    _inner: AsyncEnvironment

    @classmethod
    def _open(
        cls: Type[Self], connect: Callable[[], Coroutine[Any, Any, AsyncEnvironment]]
    ) -> Self:
        raise NotImplementedError

    def _process(
        self, inner: AsyncProcess, text: bool, encoding: Optional[str], errors: Optional[str]
    ) -> "Process":
        raise NotImplementedError

    def _file(self, inner: AsyncFile) -> "IO[bytes]":
        raise NotImplementedError

    def _watch(self, inner: AsyncWatch) -> "Watch":
        raise NotImplementedError

    def _stream(self, inner: AsyncTunnel) -> "Tunnel":
        raise NotImplementedError

    def _listener(self, inner: AsyncListener) -> "Listener":
        raise NotImplementedError

    def _forward(self, inner: AsyncForward) -> "Forward":
        raise NotImplementedError
'''


def call_of(target: str, function: ast.AST) -> ast.Call:
    """Returns the call that passes all arguments on."""
    arguments = function.args
    names = [argument.arg for argument in arguments.args[1:]]
    return ast.Call(
        func=ast.parse(target, mode="eval").body,
        args=[ast.Name(name) for name in names],
        keywords=[
            ast.keyword(argument.arg, ast.Name(argument.arg)) for argument in arguments.kwonlyargs
        ],
    )


def result_type(function: ast.AST) -> str:
    """Returns the type of the result as text."""
    returns = function.returns
    if isinstance(returns, ast.Constant) and isinstance(returns.value, str):
        return returns.value
    return ast.unparse(returns)


def synchronous(function: ast.AsyncFunctionDef) -> ast.FunctionDef:
    """Returns the method without `async`."""
    result = result_type(function)
    arguments = function.args
    documentation = ast.get_docstring(function, clean=False)
    assert documentation is not None, f"{function.name} has no documentation"
    is_constructor = result == "AsyncEnvironment"
    if is_constructor:
        call = call_of(f"AsyncEnvironment.{function.name}", function)
        lambda_arguments = ast.arguments(
            posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]
        )
        value: ast.expr = ast.Call(
            func=ast.parse("cls._open", mode="eval").body,
            args=[ast.Lambda(lambda_arguments, call)],
            keywords=[],
        )
        arguments.args[0].annotation = ast.parse("Type[Self]", mode="eval").body
        returns = "Self"
    else:
        inner = call_of(f"self._inner.{function.name}", function)
        value = ast.Call(
            func=ast.parse("self._loop.call", mode="eval").body, args=[inner], keywords=[]
        )
        returns = result
        if result in HANDLES:
            wrap, returns, extra = HANDLES[result]
            value = ast.Call(
                func=ast.parse(f"self.{wrap}", mode="eval").body,
                args=[value, *(ast.Name(name) for name in extra)],
                keywords=[],
            )
            if extra:
                for name, kind, default in TEXT_PARAMETERS:
                    annotation = ast.parse(kind, mode="eval").body
                    arguments.kwonlyargs.append(ast.arg(name, annotation))
                    arguments.kw_defaults.append(ast.Constant(default))
                before, section, after = documentation.partition("\n\n        Raises:")
                documentation = before.rstrip() + TEXT_DOCUMENTATION + section + after
    return ast.FunctionDef(
        name=function.name,
        args=arguments,
        body=[ast.Expr(ast.Constant(unindented(documentation))), ast.Return(value)],
        decorator_list=function.decorator_list,
        returns=ast.Constant(returns) if returns != "None" else ast.Constant(None),
        lineno=1,
    )


def unindented(documentation: str) -> str:
    """Returns documentation for a method whose lines are indented once more afterwards."""
    return documentation.replace("\n    ", "\n")


def property_of(function: ast.FunctionDef) -> ast.FunctionDef:
    """Returns a property that asks the asynchronous environment."""
    documentation = ast.get_docstring(function, clean=False)
    value = ast.parse(f"self._inner.{function.name}", mode="eval").body
    return ast.FunctionDef(
        name=function.name,
        args=function.args,
        body=[ast.Expr(ast.Constant(documentation)), ast.Return(value)],
        decorator_list=function.decorator_list,
        returns=function.returns,
        lineno=1,
    )


def generate() -> str:
    """Returns the text of the file."""
    module = ast.parse(SOURCE.read_text())
    environment = next(
        node
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == "AsyncEnvironment"
    )
    methods = []
    for node in environment.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.name.startswith("_") or node.name == "close":
            continue
        if isinstance(node, ast.AsyncFunctionDef):
            methods.append(synchronous(node))
        elif any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
            methods.append(property_of(node))
    parts = [HEADER]
    for method in methods:
        text = ast.unparse(ast.fix_missing_locations(method))
        parts.append("\n" + "\n".join(f"    {line}" if line else "" for line in text.splitlines()))
        parts.append("\n")
    return "".join(parts)


def main() -> int:
    text = generate()
    if "--check" in sys.argv[1:]:
        # Other versions of Python break lines differently.
        if ast.dump(ast.parse(text)) == ast.dump(ast.parse(TARGET.read_text())):
            return 0
        print("_sync_methods.py is out of date: run scripts/generate_sync.py", file=sys.stderr)
        return 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
