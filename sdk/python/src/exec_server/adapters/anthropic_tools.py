"""The tools of Anthropic's agent toolset (2026-04-01), in an environment instead of this machine.

For environment workers and tool runners of the `anthropic` package:

>>> async with await AsyncEnvironment.connect("ws://127.0.0.1:8765") as env:
...     worker = client.beta.environments.work.worker(
...         ..., tools=lambda _context: environment_tools(env, workdir="/srv/app"))
...     await worker.run()

The names and inputs are those of `beta_agent_toolset_20260401`, so agents need no change. Paths may
lead anywhere in the environment; a `sandbox` confines commands and file tools alike.
"""

from __future__ import annotations

import asyncio
import posixpath
import shlex
import uuid
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Awaitable, Callable, List, Optional

from anthropic.lib.tools import BetaAsyncFunctionTool, ToolError, beta_async_tool
from anthropic.types.beta import (
    BetaManagedAgentsAgentToolset20260401BashInput,
    BetaManagedAgentsAgentToolset20260401EditInput,
    BetaManagedAgentsAgentToolset20260401GlobInput,
    BetaManagedAgentsAgentToolset20260401GrepInput,
    BetaManagedAgentsAgentToolset20260401ReadInput,
    BetaManagedAgentsAgentToolset20260401WriteInput,
)

from ..environment import AsyncEnvironment
from ..errors import ExecServerError, RemoteError
from ..process import AsyncProcess
from ..sandbox import SandboxPolicy
from ..types import PIPE, STDOUT

#: Bytes of a result.
OUTPUT_LIMIT = 100 * 1024
#: Bytes of a file that `read` returns whole.
FILE_LIMIT = 256 * 1024
#: Seconds of a `bash` call without `timeout_ms`.
DEFAULT_TIMEOUT = 120.0
#: Paths of a `glob` call.
GLOB_LIMIT = 200


def environment_tools(
    environment: AsyncEnvironment,
    *,
    workdir: Optional[str] = None,
    sandbox: Optional[SandboxPolicy] = None,
) -> "List[BetaAsyncFunctionTool[Any]]":
    """Returns the tools `bash`, `read`, `write`, `edit`, `glob` and `grep`.

    Args:
        environment: An open environment, which the caller closes.
        workdir: Where relative paths and the shell start. Default: that of the environment.
        sandbox: What commands and file operations may use.
    """
    base = workdir or environment.cwd

    def resolve(path: Optional[str]) -> str:
        return posixpath.join(base, path) if path else base

    @asynccontextmanager
    async def bash_tool() -> AsyncIterator[Callable[..., Awaitable[str]]]:
        """Run a command in a persistent bash shell."""
        shell = _Shell(environment, base, sandbox)

        async def bash(
            command: Optional[str] = None,
            restart: Optional[bool] = None,
            timeout_ms: Optional[int] = None,
        ) -> str:
            if restart:
                await shell.close()
                return "bash session restarted"
            if not command:
                raise ToolError("bash: command is required")
            timeout = timeout_ms / 1000 if timeout_ms else DEFAULT_TIMEOUT
            try:
                output, code = await shell.run(command, timeout)
            except ExecServerError as error:
                raise ToolError(f"bash: {error}") from error
            if code != 0:
                raise ToolError(output or f"exit code {code}")
            return output

        try:
            yield bash
        finally:
            await shell.close()

    async def read(file_path: str, view_range: Optional[List[int]] = None) -> str:
        """Read a text file."""
        if view_range and len(view_range) != 2:
            raise ToolError("read: view_range must be [start_line, end_line]")
        path = resolve(file_path)
        try:
            size = (await environment.metadata(path, sandbox=sandbox)).size
            if size > FILE_LIMIT and not view_range:
                raise ToolError(
                    f"read: {file_path} has {size} bytes, more than {FILE_LIMIT}: use view_range"
                )
            text = (await environment.read_file(path, sandbox=sandbox)).decode("utf-8")
        except RemoteError as error:
            raise ToolError(f"read: {error}") from error
        except UnicodeDecodeError as error:
            raise ToolError(f"read: {file_path}: not valid UTF-8 text") from error
        if not view_range:
            return text
        start, end = view_range
        lines = text.split("\n")
        chosen = "\n".join(lines[max(0, start - 1) : end if end > 0 else len(lines)])
        return _limited(chosen)

    async def write(file_path: str, content: str) -> str:
        """Write a file, creating parent directories as needed."""
        data = content.encode()
        try:
            await environment.write_file(
                resolve(file_path), data, create_parents=True, sandbox=sandbox
            )
        except RemoteError as error:
            raise ToolError(f"write: {error}") from error
        return f"wrote {len(data)} bytes to {file_path}"

    async def edit(
        file_path: str, old_string: str, new_string: str, replace_all: Optional[bool] = None
    ) -> str:
        """Replace text in a file by exact string match."""
        if not old_string:
            raise ToolError("edit: old_string is empty")
        path = resolve(file_path)
        try:
            text = (await environment.read_file(path, sandbox=sandbox)).decode("utf-8")
        except RemoteError as error:
            raise ToolError(f"edit: {error}") from error
        except UnicodeDecodeError as error:
            raise ToolError(f"edit: {file_path}: not valid UTF-8 text") from error
        count = text.count(old_string)
        if count == 0:
            raise ToolError(f"edit: old_string not found in {file_path}")
        if count > 1 and not replace_all:
            raise ToolError(f"edit: old_string appears {count} times in {file_path}")
        changed = text.replace(old_string, new_string).encode()
        try:
            await environment.write_file(path, changed, atomic=True, sandbox=sandbox)
        except RemoteError as error:
            raise ToolError(f"edit: {error}") from error
        return f"edited {file_path} ({count} replacement{'s' if count > 1 else ''})"

    async def glob(pattern: str, path: Optional[str] = None) -> str:
        """List files matching a glob pattern."""
        try:
            found = await environment.find(
                resolve(path), glob=pattern, max_results=GLOB_LIMIT, sandbox=sandbox
            )
        except RemoteError as error:
            raise ToolError(f"glob: {error}") from error
        return "\n".join(str(item) for item in found.paths) or "no matches"

    async def grep(pattern: str, path: Optional[str] = None) -> str:
        """Search file contents for a regular expression."""
        try:
            found = await environment.search(pattern, resolve(path), regex=True, sandbox=sandbox)
        except RemoteError as error:
            raise ToolError(f"grep: {error}") from error
        lines = [f"{match.path}:{match.line}:{match.text}" for match in found.matches]
        if found.truncated:
            lines.append("[more matches were left out]")
        return _limited("\n".join(lines)) or "no matches"

    def tool(function: Any, name: str, schema: Any) -> "BetaAsyncFunctionTool[Any]":
        made: "BetaAsyncFunctionTool[Any]" = beta_async_tool(name=name, input_schema=schema)(
            function
        )
        return made

    return [
        tool(bash_tool, "bash", BetaManagedAgentsAgentToolset20260401BashInput),
        tool(read, "read", BetaManagedAgentsAgentToolset20260401ReadInput),
        tool(write, "write", BetaManagedAgentsAgentToolset20260401WriteInput),
        tool(edit, "edit", BetaManagedAgentsAgentToolset20260401EditInput),
        tool(glob, "glob", BetaManagedAgentsAgentToolset20260401GlobInput),
        tool(grep, "grep", BetaManagedAgentsAgentToolset20260401GrepInput),
    ]


class _Shell:
    """A shell that keeps its directory and variables from one command to the next."""

    def __init__(
        self, environment: AsyncEnvironment, cwd: str, sandbox: Optional[SandboxPolicy]
    ) -> None:
        self._environment = environment
        self._cwd = cwd
        self._sandbox = sandbox
        self._process: Optional[AsyncProcess] = None
        #: Output of the background that came behind the end of the last command.
        self._ahead = b""
        self._turn = asyncio.Lock()

    async def run(self, command: str, timeout: float) -> "tuple[str, int]":
        """Runs a command, and returns its output and status.

        A timeout ends the shell, and so does a cancelled call: what it still prints would look like
        output of the next command.
        """
        async with self._turn:
            try:
                return await asyncio.wait_for(self._run(command), timeout)
            except (asyncio.TimeoutError, TimeoutError) as error:
                await self.close()
                raise ToolError(f"bash: no end after {timeout:g} s; the shell was ended") from error
            except BaseException:
                await self.close()
                raise

    async def _run(self, command: str) -> "tuple[str, int]":
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._environment.spawn(
                ["bash", "--noprofile", "--norc"],
                stdin=PIPE,
                stderr=STDOUT,
                cwd=self._cwd,
                sandbox=self._sandbox,
            )
            self._process, self._ahead = process, b""
            assert process.stdin is not None
            # Through one pipe, so that no error comes behind the end of its command.
            await process.stdin.write(b"exec 2>&1\n")
        assert process.stdin is not None and process.stdout is not None
        # A line that no command prints by chance ends the output.
        end = f"end-{uuid.uuid4()}"
        await process.stdin.write(_script(command, end).encode())
        marker = b"\n" + end.encode() + b" "
        kept, omitted = bytearray(), 0
        tail, self._ahead = self._ahead, b""
        async for chunk in process.stdout:
            tail += chunk
            at = tail.find(marker)
            line_end = -1 if at < 0 else tail.find(b"\n", at + len(marker))
            if line_end >= 0:
                code = int(tail[at + len(marker) : line_end])
                self._ahead = tail[line_end + 1 :]
                room = OUTPUT_LIMIT - len(kept)
                omitted += max(0, at - room)
                kept += tail[: min(at, room)]
                return _shown(bytes(kept), omitted), code
            if at < 0 and len(tail) > len(marker):
                done, tail = tail[: -len(marker)], tail[-len(marker) :]
                room = OUTPUT_LIMIT - len(kept)
                omitted += max(0, len(done) - room)
                kept += done[: max(0, room)]
        # `exit` ended the shell.
        self._process = None
        code = await process.wait()
        return _shown(bytes(kept) + tail, omitted), code

    async def close(self) -> None:
        """Ends the shell and everything that it started."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            try:
                await process.kill()
            except ExecServerError:
                pass


def _script(command: str, end: str) -> str:
    """Returns what a shell reads to run a command, and to print its status behind the mark."""
    # Quoted, so that an unfinished command cannot take the next line with it. A copy of the shell
    # parses it first: some versions of bash crash after a syntax error in `eval`.
    quoted = shlex.quote(command)
    parse = f"(eval $'set -n\\n'{quoted})"
    run = f"if {parse} 2>/dev/null; then eval {quoted} </dev/null; else {parse}; (exit 2); fi"
    return f"{run}\nprintf '\\n%s %s\\n' {end} \"$?\"\n"


def _shown(output: bytes, omitted: int) -> str:
    text = output.decode("utf-8", "replace")
    return text if omitted == 0 else f"{text}\n[{omitted} bytes were left out]"


def _limited(text: str) -> str:
    if len(text) <= OUTPUT_LIMIT:
        return text
    return f"{text[:OUTPUT_LIMIT]}\n[{len(text) - OUTPUT_LIMIT} characters were left out]"
