"""Environments, for asyncio: where commands run and files are."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import uuid
from types import TracebackType
from typing import (
    Any,
    BinaryIO,
    Dict,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
    Type,
    Union,
    cast,
)

from ._client import Client
from ._connector import (
    Connector,
    LocalConnector,
    ProgramConnector,
    TlsOption,
    UrlConnector,
    hub_connector,
)
from ._framing import Buffer, Json, decode_base64
from ._paths import RemotePath, native_bytes, native_text, path_uri, uri_path
from .errors import (
    ClosedError,
    ExecServerError,
    NotFoundError,
    ProtocolError,
    RemoteError,
    TimeoutExpired,
    UnsupportedError,
)
from .files import BLOCK_BYTES, AsyncFile, AsyncWatch, link_target
from .process import AsyncProcess, OutputStream
from .sandbox import SandboxPolicy
from .tunnels import AsyncForward, AsyncListener, AsyncTunnel, pass_both_ways
from .types import (
    DEVNULL,
    PIPE,
    STDOUT,
    Argument,
    CompletedProcess,
    DirectoryEntry,
    EnvironmentInfo,
    ExitStatus,
    FindResult,
    Limits,
    ListeningPort,
    Metadata,
    ProcessInfo,
    SearchMatch,
    SearchResult,
    TerminalSize,
    WalkEntry,
    WalkResult,
    collect_json,
)

#: Where output goes: `PIPE`, `DEVNULL`, `None` (to the output of this program), a descriptor or a
#: file.
OutputTarget = Union[int, BinaryIO, Any, None]
#: A command: a list, or with `shell` a string.
Command = Union[str, Sequence[Argument]]
TerminalOption = Union[bool, TerminalSize, Tuple[int, int], None]



class SupportsId(Protocol):
    """A process handle."""

    @property
    def id(self) -> str:
        """The id of the process."""


#: A process, or its id.
ProcessReference = Union[str, SupportsId]

#: Largest file that is written by one message; larger ones are written by blocks.
_WHOLE_FILE_BYTES = 8 << 20
#: Time for ending the command of a cancelled call.
_CLEANUP_SECONDS = 5.0

_INHERIT_ALL: Json = {
    "inherit": "all",
    "ignoreDefaultExcludes": True,
    "exclude": [],
    "set": {},
    "includeOnly": [],
}


class AsyncEnvironment:
    """A place that runs commands and has files.

    Make one with :meth:`connect`, :meth:`local`, :meth:`program` or :meth:`hub`, and use it as an
    asynchronous context manager. Closing it ends its processes, except detached ones.

    A connection that breaks is replaced: calls that wait go on, and no byte of output or input is
    lost or repeated. A call that may not be repeated fails with :class:`CallInterruptedError`.
    """

    def __init__(self, client: Client, is_local: bool) -> None:
        self._client = client
        self._is_local = is_local

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        token: Optional[str] = None,
        headers: Optional[Mapping[str, str]] = None,
        tls: TlsOption = None,
        client_name: Optional[str] = None,
        reconnect_timeout: Optional[float] = None,
    ) -> "AsyncEnvironment":
        """Connects to a server at a `ws://`, `wss://` or `unix://` URL.

        Args:
            url: Where the server listens.
            token: Sent as `Authorization: Bearer`, only over `wss://` or to this machine.
            headers: More headers of the request.
            tls: Trusted certificates: a file in PEM, or a context. Default: those of this host.
            client_name: For the logs of the server.
            reconnect_timeout: Seconds after which a broken connection is given up. Default: as
                long as the server keeps the session, at least 45.

        Raises:
            ValueError: The URL or the token is invalid.
            AuthenticationError: The server refuses the token.
            ConnectError: The server cannot be reached.
        """
        connector = UrlConnector(url, token, headers, tls)
        return await cls._open(connector, client_name, reconnect_timeout)

    @classmethod
    async def local(
        cls,
        *,
        program: Optional[Union[str, "os.PathLike[str]"]] = None,
        client_name: Optional[str] = None,
        reconnect_timeout: Optional[float] = None,
    ) -> "AsyncEnvironment":
        """Connects to the server of this machine, and starts it if none runs.

        The server is shared by all programs of the account and exits when it is idle. Commands
        start in the working directory and with the variables of this process.

        Args:
            program: The `exec-server` program. Default: `$EXEC_SERVER`, else the one that was
                installed with this package, else the first on the PATH.
            client_name: For the logs of the server.
            reconnect_timeout: Seconds after which a broken connection is given up.
        """
        connector = LocalConnector(program)
        return await cls._open(connector, client_name, reconnect_timeout, is_local=True)

    @classmethod
    async def program(
        cls,
        argv: Sequence[Union[str, "os.PathLike[str]"]],
        *,
        env: Optional[Mapping[str, str]] = None,
        client_name: Optional[str] = None,
        reconnect_timeout: Optional[float] = None,
    ) -> "AsyncEnvironment":
        """Starts a program that speaks the protocol on its standard input and output.

        For example `["ssh", "box", "exec-server --listen stdio"]`. If the program ends, it is
        started again; its session goes on if the server behind it still has it.

        Args:
            argv: The program and its arguments.
            env: Variables in addition to those of this process.
            client_name: For the logs of the server.
            reconnect_timeout: Seconds after which a broken connection is given up.
        """
        connector = ProgramConnector(argv, env)
        return await cls._open(connector, client_name, reconnect_timeout)

    @classmethod
    async def hub(
        cls,
        url: str,
        environment_id: str,
        *,
        token: str,
        program: Optional[Union[str, "os.PathLike[str]"]] = None,
        client_name: Optional[str] = None,
        reconnect_timeout: Optional[float] = None,
    ) -> "AsyncEnvironment":
        """Connects to a machine behind a hub, end-to-end encrypted.

        The `exec-server` program runs as a local bridge, because the encryption is not implemented
        in Python. It starts a server for this client alone on the machine, which has to be Linux.
        A lost connection to the hub is replaced by the bridge. If the bridge ends, so does the
        session, with its detached processes.

        Args:
            url: The hub, `https://…`.
            environment_id: The machine's name there.
            token: A token with the role `harness`.
            program: The `exec-server` program. Default: as for :meth:`local`.
            client_name: For the logs of the server.
            reconnect_timeout: Seconds after which a broken connection is given up.

        Raises:
            AuthenticationError: The hub refuses the token.
            ConnectError: The hub or the machine cannot be reached, or there is no program.
        """
        connector = hub_connector(url, environment_id, token, program)
        return await cls._open(connector, client_name, reconnect_timeout)

    @classmethod
    async def _open(
        cls,
        connector: Connector,
        client_name: Optional[str],
        reconnect_timeout: Optional[float],
        is_local: bool = False,
    ) -> "AsyncEnvironment":
        client = Client(connector, client_name, reconnect_timeout)
        await client.open()
        return cls(client, is_local)

    async def __aenter__(self) -> "AsyncEnvironment":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the processes of the session and the connection. Detached processes go on."""
        await self._client.close()

    # What it is.

    @property
    def info(self) -> EnvironmentInfo:
        """What the server says about its host."""
        return EnvironmentInfo.from_wire(self._client.info)

    @property
    def server_version(self) -> Optional[str]:
        """Name and version of the server; `None` if it is the stock one."""
        server = self._client.server
        return f"{server['name']} {server['version']}" if server else None

    @property
    def extensions(self) -> "frozenset[str]":
        """The extensions of the protocol that the server granted."""
        return frozenset(self._client.extensions)

    @property
    def connections(self) -> int:
        """How many connections were opened so far, the first one included."""
        return self._client.connections

    @property
    def cwd(self) -> str:
        """The directory at which relative paths start."""
        return native_text(self._base())

    def _base(self) -> bytes:
        if self._is_local:
            return os.fsencode(os.getcwd())
        uri = self._client.info.get("cwd")
        return b"/" if uri is None else uri_path(uri)

    def _uri(self, path: RemotePath) -> str:
        return path_uri(path, self._base())

    # Processes.

    async def run(
        self,
        args: Command,
        *,
        input: Union[str, Buffer, None] = None,
        capture_output: bool = False,
        stdout: OutputTarget = None,
        stderr: OutputTarget = None,
        timeout: Optional[float] = None,
        check: bool = False,
        cwd: Optional[RemotePath] = None,
        env: Optional[Mapping[str, str]] = None,
        extra_env: Optional[Mapping[str, str]] = None,
        shell: bool = False,
        text: bool = False,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        terminal: TerminalOption = None,
        sandbox: Optional[SandboxPolicy] = None,
        limits: Optional[Limits] = None,
        max_output: Optional[int] = None,
        options: Optional[Mapping[str, Any]] = None,
    ) -> "CompletedProcess[Any]":
        """Runs a command to its end, like :func:`subprocess.run`.

        It ends when the command and everything that holds its output have ended. A cancelled call
        kills the command.

        Args:
            args: Program and arguments; with `shell` a string for `/bin/sh`.
            input: Standard input; without it, it is empty.
            capture_output: Collects stdout and stderr.
            stdout: `PIPE` collects it, `DEVNULL` discards it, a file or descriptor gets it. The
                default is the output of this program.
            stderr: As `stdout`; `STDOUT` joins them.
            timeout: Seconds after which the command is killed.
            check: Raises an error if the status is not 0.
            cwd: Working directory.
            env: All variables. Default: those of the server, or on this machine of this process.
            extra_env: Variables in addition.
            shell: Runs `args` with `/bin/sh -c`.
            text: Decodes output and encodes input, by default as UTF-8.
            encoding: The encoding; implies `text`.
            errors: How invalid text is handled, as in :meth:`bytes.decode`; implies `text`.
            terminal: Runs on a terminal of this size; all output is then stdout.
            sandbox: What the command may use.
            limits: Limits of time and memory.
            max_output: Bytes of each collected stream above which the command is killed.
            options: More members of `process/start`, as the protocol names them.

        Raises:
            CalledProcessError: With `check`, the command failed.
            TimeoutExpired: It took longer than `timeout`; it was killed.
            OutputLimitError: It wrote more than `max_output`; it was killed.
            RemoteError: The host could not start it.
            ConnectionLostError: The connection broke and the session was not resumed.
        """
        if capture_output:
            if stdout is not None or stderr is not None:
                raise ValueError("stdout and stderr exclude capture_output")
            stdout = stderr = PIPE
        is_text = text or encoding is not None or errors is not None
        encoding, errors = encoding or "utf-8", errors or "strict"
        if isinstance(input, str):
            input = input.encode(encoding, errors)
        process = await self.spawn(
            args,
            stdin=PIPE if input is not None and not terminal else None,
            stdout=DEVNULL if _is_discarded(stdout) else PIPE,
            stderr=STDOUT if _is_joined(stderr) else DEVNULL if _is_discarded(stderr) else PIPE,
            cwd=cwd,
            env=env,
            extra_env=extra_env,
            shell=shell,
            terminal=terminal,
            sandbox=sandbox,
            limits=limits,
            options=options,
        )
        out_pipe, err_pipe = _is_pipe(stdout), _is_pipe(stderr)
        copies = []
        if not out_pipe and process.stdout is not None:
            copies.append(_copy(process.stdout, stdout, sys.stdout))
            process.stdout = None
        if not err_pipe and process.stderr is not None:
            copies.append(_copy(process.stderr, stderr, sys.stderr))
            process.stderr = None
        copying = [asyncio.ensure_future(copy) for copy in copies]
        if terminal and input is None:
            process.stdin = None
        try:
            out, err = await process.communicate(input, timeout, max_output)
            for task in copying:
                await task
        except BaseException as error:
            for task in copying:
                task.cancel()
            if process._feeding is not None:
                process._feeding.cancel()
            await _kill(process)
            if is_text and isinstance(error, TimeoutExpired):
                raise TimeoutExpired(
                    process.args,
                    error.timeout,
                    _decode(error.output, encoding, "replace"),
                    _decode(error.stderr, encoding, "replace"),
                ) from None
            raise
        status = process.status or ExitStatus(-1, cause="lost")
        shown_out: Union[bytes, str, None] = out if out_pipe else None
        shown_err: Union[bytes, str, None] = err if err_pipe and not terminal else None
        if is_text:
            shown_out = _decode(shown_out, encoding, errors)
            shown_err = _decode(shown_err, encoding, errors)
        completed: "CompletedProcess[Any]" = CompletedProcess(
            process.args, status, shown_out, shown_err
        )
        if check:
            completed.check_returncode()
        return completed

    async def spawn(
        self,
        args: Command,
        *,
        stdin: Optional[int] = None,
        stdout: Optional[int] = PIPE,
        stderr: Optional[int] = PIPE,
        cwd: Optional[RemotePath] = None,
        env: Optional[Mapping[str, str]] = None,
        extra_env: Optional[Mapping[str, str]] = None,
        shell: bool = False,
        terminal: TerminalOption = None,
        sandbox: Optional[SandboxPolicy] = None,
        limits: Optional[Limits] = None,
        detached: bool = False,
        durable: Optional[bool] = None,
        id: Optional[str] = None,
        arg0: Optional[str] = None,
        options: Optional[Mapping[str, Any]] = None,
    ) -> AsyncProcess:
        """Starts a command, and returns once it runs.

        Args:
            args: Program and arguments; with `shell` a string for `/bin/sh`.
            stdin: `PIPE` to write to it; otherwise it is empty. A terminal always has input.
            stdout: `PIPE` or `DEVNULL`.
            stderr: `PIPE`, `DEVNULL`, or `STDOUT` to join it to stdout.
            cwd: Working directory.
            env: All variables. Default: those of the server, or on this machine of this process.
            extra_env: Variables in addition.
            shell: Runs `args` with `/bin/sh -c`.
            terminal: Runs on a terminal: `True`, a :class:`TerminalSize` or `(rows, cols)`.
            sandbox: What the command may use.
            limits: Limits of time and memory.
            detached: Belongs to the server, so it outlives this environment. See :meth:`attach`.
            durable: Outlives the server, too. Default: as the server is configured.
            id: The process id; unique on the server if `detached`. Default: a random one.
            arg0: `argv[0]` as the program sees it.
            options: More members of `process/start`, as the protocol names them.

        Raises:
            RemoteError: The host could not start it, or cannot enforce the policy.
            CallInterruptedError: The connection broke, and the command may have run briefly.
        """
        argv = _command(args, shell)
        for name, value in (("stdout", stdout), ("stderr", stderr)):
            allowed = (PIPE, DEVNULL) if name == "stdout" else (PIPE, DEVNULL, STDOUT)
            if value not in allowed:
                text = f"invalid {name}: use PIPE, DEVNULL or, for stderr, STDOUT"
                raise ValueError(text)
        if stdin not in (None, PIPE, DEVNULL):
            raise ValueError("invalid stdin: use PIPE, DEVNULL or None")
        size = _terminal_size(terminal)
        directory = self._base()
        if cwd is not None:
            raw = native_bytes(cwd)
            directory = raw if raw.startswith(b"/") else directory.rstrip(b"/") + b"/" + raw
        client = self._client
        events = client.new_process(id, detached)
        has_stdin = size is not None or stdin == PIPE
        params: Dict[str, Any] = {
            "processId": events.id,
            "argv": argv,
            "cwd": path_uri(directory, b"/"),
            "env": self._variables(env, extra_env),
            "tty": size is not None,
        }
        if env is None and not self._is_local:
            params["envPolicy"] = _INHERIT_ALL
        if stdin == PIPE and size is None:
            params["pipeStdin"] = True
        if size is not None:
            params["size"] = size.to_wire()
        if sandbox is not None:
            params["sandbox"] = sandbox.to_wire(directory)
            if sandbox.loopback:
                params["managedNetwork"] = {"allowLocalBinding": True}
        if limits is not None:
            params["limits"] = limits.to_wire()
        if detached:
            params["detached"] = True
        if durable is not None:
            params["durable"] = durable
        if arg0 is not None:
            params["arg0"] = arg0
        if options:
            params.update(options)
        self._check_start(params)
        process = AsyncProcess(client, events, argv, size is not None, has_stdin)
        if stderr == STDOUT and size is None:
            process.join_stderr()
        elif stderr == DEVNULL and process.stderr is not None:
            process.stderr.discard()
            process.stderr = None
        if stdout == DEVNULL and process.stdout is not None:
            process.stdout.discard()
            process.stdout = None
        await client.start_process(events, params)
        return process

    def _check_start(self, params: Json) -> None:
        """Refuses what a server would silently ignore."""
        if self._client.server:
            return
        for member in ("limits", "detached", "durable"):
            if params.get(member):
                text = f"this server does not know `{member}` of processes: it is an older one"
                raise UnsupportedError(-32601, text, "process/start")

    def _variables(
        self, env: Optional[Mapping[str, str]], extra: Optional[Mapping[str, str]]
    ) -> Dict[str, str]:
        variables: Dict[str, str] = {}
        if env is not None:
            variables.update(env)
        elif self._is_local:
            variables.update(
                (name, value)
                for name, value in os.environ.items()
                if _is_text(name) and _is_text(value)
            )
        variables.update(extra or {})
        for name, value in variables.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"variable {name!r} is not text")
            if not _is_text(name) or not _is_text(value):
                raise ValueError(f"variable {name!r} is not UTF-8, which the protocol needs")
        return variables

    async def attach(self, id: str, *, after_seq: Optional[int] = None) -> AsyncProcess:
        """Follows a detached process, or takes over a process of another session.

        Its retained output is read first, and then what it writes. A process that was taken over
        is a detached one from then on.

        Args:
            id: The process id.
            after_seq: The number of an event; older ones are left out.

        Raises:
            RemoteError: There is no such process.
        """
        info = None
        for known in await self.list(all=True):
            if known.id == id:
                info = known
        if info is None:
            try:
                for known in await self.history():
                    if known.id == id:
                        info = known
            except RemoteError:
                # No state directory.
                pass
        client = self._client
        events = client.new_process(id, True)
        if info is not None:
            events.started_at_ms = info.started_at_ms
            events.os_pid = info.pid
        if after_seq:
            events.order.skip_to(after_seq + 1)
        else:
            events.replays_from = 0
        argv = info.argv if info is not None else []
        process = AsyncProcess(client, events, argv, info is not None and info.tty, True)
        await client.attach_process(events)
        return process

    async def list(self, *, all: bool = False) -> List[ProcessInfo]:
        """Lists the processes of the session and the detached ones.

        With `all` also those of other sessions, which :meth:`attach` can take over.
        """
        result, _ = await self._client.request("process/list", {"all": True} if all else {})
        return [ProcessInfo.from_wire(process) for process in result["processes"]]

    async def history(self) -> "List[ProcessInfo]":
        """Lists the recorded durable processes, running and ended, oldest first."""
        result, _ = await self._client.request("history/list", {})
        return [ProcessInfo.from_wire(process) for process in result["processes"]]

    async def forget(self, id: str) -> None:
        """Removes a detached process that has finished, with its output."""
        params = {"processId": id, "forget": True}
        await self._client.request("process/release", params)

    # Files.

    async def read_file(
        self, path: RemotePath, *, sandbox: Optional[SandboxPolicy] = None
    ) -> bytes:
        """Returns the content of a file of at most 512 MiB. Use :meth:`open` for larger ones."""
        params = self._path(path, sandbox)
        result, data = await self._client.request("fs/readFile", params)
        return decode_base64(result.get("dataBase64"), "`fs/readFile`") if data is None else data

    async def read_text(
        self, path: RemotePath, encoding: str = "utf-8", errors: str = "strict"
    ) -> str:
        """Returns the content of a file as text."""
        return (await self.read_file(path)).decode(encoding, errors)

    async def write_file(
        self,
        path: RemotePath,
        data: Buffer,
        *,
        create_parents: bool = False,
        atomic: bool = False,
        mode: Optional[int] = None,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> None:
        """Creates or replaces a file.

        Args:
            path: The file.
            data: Its whole content.
            create_parents: Makes missing directories.
            atomic: Readers see the old or the new content, never a mix.
            mode: Permission bits.
            sandbox: What may be written.
        """
        view = memoryview(data).cast("B")
        if len(view) > _WHOLE_FILE_BYTES:
            await self._write_blocks(path, view, create_parents, atomic, mode, sandbox)
            return
        params = self._path(path, sandbox)
        if create_parents:
            params["createParents"] = True
        if atomic:
            params["atomic"] = True
        if mode is not None:
            params["mode"] = mode
        if not self._client.server and (create_parents or atomic or mode is not None):
            text = "this server does not know create_parents, atomic and mode: it is an older one"
            raise UnsupportedError(-32601, text, "fs/writeFile")
        await self._client.request("fs/writeFile", params, bytes(view))

    async def _write_blocks(
        self,
        path: RemotePath,
        data: memoryview,
        create_parents: bool,
        atomic: bool,
        mode: Optional[int],
        sandbox: Optional[SandboxPolicy],
    ) -> None:
        raw = native_bytes(path)
        if create_parents:
            await self.make_directory(os.path.dirname(raw) or b".", sandbox=sandbox)
        target: bytes = raw + f".{uuid.uuid4().hex[:8]}.part".encode() if atomic else raw
        try:
            if atomic and mode is None:
                try:
                    mode = (await self.metadata(raw)).mode
                except NotFoundError:
                    pass
            async with await self.open(target, "wb", sandbox=sandbox) as file:
                await file.write(data)
            if mode is not None:
                await self.set_metadata(target, mode=mode, sandbox=sandbox)
            if atomic:
                await self.rename(target, raw, overwrite=True, sandbox=sandbox)
        except BaseException:
            if atomic:
                params = {**self._path(target, sandbox), "recursive": False, "force": True}
                self._client.send_unanswered("fs/remove", params)
            raise

    async def write_text(self, path: RemotePath, text: str, encoding: str = "utf-8") -> None:
        """Creates or replaces a file with text."""
        await self.write_file(path, text.encode(encoding))

    async def open(
        self, path: RemotePath, mode: str = "rb", *, sandbox: Optional[SandboxPolicy] = None
    ) -> AsyncFile:
        """Opens a file for access by blocks, of any size.

        Args:
            path: The file.
            mode: `rb` to read, `wb` to create or truncate, `r+b` to create or keep.
            sandbox: What may be used.
        """
        wire = None if sandbox is None else sandbox.to_wire(self._base())
        file = AsyncFile(self._client, native_text(native_bytes(path)), self._uri(path), mode, wire)
        await file._open()
        return file

    async def download(self, path: RemotePath, target: Union[str, "os.PathLike[str]"]) -> int:
        """Copies a file of the environment to a local one, and returns its size."""
        loop = asyncio.get_running_loop()
        size = 0
        async with await self.open(path) as source:
            with open(target, "wb") as local:
                async for block in source:
                    await loop.run_in_executor(None, local.write, block)
                    size += len(block)
        return size

    async def upload(self, source: Union[str, "os.PathLike[str]"], path: RemotePath) -> int:
        """Copies a local file to the environment, and returns its size."""
        loop = asyncio.get_running_loop()
        size = 0
        with open(source, "rb") as local:
            async with await self.open(path, "wb") as target:
                while True:
                    block = await loop.run_in_executor(None, local.read, 4 * BLOCK_BYTES)
                    if not block:
                        return size
                    size += await target.write(block)

    async def make_directory(
        self,
        path: RemotePath,
        *,
        parents: bool = True,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> None:
        """Makes a directory. With `parents` an existing one is fine and missing parents are made."""
        params = {**self._path(path, sandbox), "recursive": parents}
        await self._client.request("fs/createDirectory", params)

    async def remove(
        self,
        path: RemotePath,
        *,
        recursive: bool = False,
        missing_ok: bool = False,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> None:
        """Removes a file, a link itself, or a directory; with `recursive` all that is in it."""
        params = {**self._path(path, sandbox), "recursive": recursive, "force": missing_ok}
        await self._client.request("fs/remove", params)

    async def rename(
        self,
        source: RemotePath,
        destination: RemotePath,
        *,
        overwrite: bool = False,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> None:
        """Renames atomically. Without `overwrite` nothing is ever replaced."""
        params = {
            "sourcePath": self._uri(source),
            "destinationPath": self._uri(destination),
            "overwrite": overwrite,
        }
        await self._client.request("fs/rename", self._sandboxed(params, sandbox))

    async def copy(
        self,
        source: RemotePath,
        destination: RemotePath,
        *,
        recursive: bool = False,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> None:
        """Copies a file, or with `recursive` a directory, within the environment."""
        params = {
            "sourcePath": self._uri(source),
            "destinationPath": self._uri(destination),
            "recursive": recursive,
        }
        await self._client.request("fs/copy", self._sandboxed(params, sandbox))

    async def symlink(
        self,
        target: RemotePath,
        path: RemotePath,
        *,
        overwrite: bool = False,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> None:
        """Makes `path` a link to `target`, like :func:`os.symlink`."""
        raw = native_bytes(target)
        params: Json = {**self._path(path, sandbox), "overwrite": overwrite}
        params["target"] = raw.decode("utf-8", "replace")
        if not _is_text(native_text(raw)):
            params["targetBase64"] = base64.b64encode(raw).decode("ascii")
        await self._client.request("fs/createSymlink", params)

    async def metadata(
        self,
        path: RemotePath,
        *,
        follow_symlinks: bool = True,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> Metadata:
        """Returns type, size and times of a path, like :func:`os.stat`."""
        params = self._path(path, sandbox)
        if not follow_symlinks:
            if "fileDetails" not in self._client.extensions:
                text = "this server cannot describe links: it is an older one"
                raise UnsupportedError(-32601, text, "fs/getMetadata")
            params["details"] = True
        result, _ = await self._client.request("fs/getMetadata", params)
        target = link_target(result)
        size = result["size"]
        is_symlink = bool(result["isSymlink"])
        kind = _kind(result)
        if not follow_symlinks and is_symlink:
            kind = "symlink"
            size = len((target or "").encode("utf-8", "surrogateescape"))
        return Metadata(
            kind=kind,
            is_symlink=is_symlink,
            size=size,
            mode=result.get("mode"),
            created_at_ms=result["createdAtMs"],
            modified_at_ms=result["modifiedAtMs"],
            link_target=target if kind == "symlink" else None,
        )

    async def exists(self, path: RemotePath) -> bool:
        """Returns whether a path exists, like :func:`os.path.exists`."""
        try:
            await self.metadata(path)
        except NotFoundError:
            return False
        return True

    async def set_metadata(
        self,
        path: RemotePath,
        *,
        mode: Optional[int] = None,
        modified_at_ms: Optional[int] = None,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> None:
        """Sets permission bits and modification time."""
        params = {
            **self._path(path, sandbox),
            **collect_json({"mode": mode, "modifiedAtMs": modified_at_ms}),
        }
        await self._client.request("fs/setMetadata", params)

    async def realpath(self, path: RemotePath) -> str:
        """Returns the path with every link resolved. It must exist."""
        result, _ = await self._client.request("fs/canonicalize", self._path(path, None))
        return native_text(uri_path(result["path"]))

    async def read_directory(
        self, path: RemotePath = ".", *, sandbox: Optional[SandboxPolicy] = None
    ) -> "List[DirectoryEntry]":
        """Lists a directory, sorted by the bytes of the names."""
        params = self._path(path, sandbox)
        paged = "fileDetails" in self._client.extensions
        if paged:
            params["details"] = True
        entries: List[DirectoryEntry] = []
        while True:
            result, _ = await self._client.request("fs/readDirectory", params)
            for entry in result["entries"]:
                name = entry["fileName"]
                if entry.get("path") is not None:
                    name = native_text(os.path.basename(uri_path(entry["path"])))
                target = link_target(entry)
                is_dangling = target is not None and entry.get("mode") is None
                kind = "symlink" if is_dangling else _kind(entry)
                entries.append(DirectoryEntry(name, kind, entry.get("mode"), target))
            cursor = result.get("nextCursor")
            if not cursor:
                break
            params = {**params, "cursor": cursor}
        if not paged:
            entries.sort(key=lambda entry: entry.name.encode("utf-8", "surrogateescape"))
        return entries

    async def walk(
        self,
        path: RemotePath = ".",
        *,
        max_depth: int = 64,
        max_directories: int = 10_000,
        max_entries: int = 50_000,
        follow_symlinks: bool = False,
        prune_hidden: bool = False,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> WalkResult:
        """Lists a tree, breadth first.

        Args:
            path: The root, which is not listed.
            max_depth: 0 lists only the entries of the root.
            max_directories: Directories to enter.
            max_entries: Entries to examine.
            follow_symlinks: Enters links to directories, each directory once.
            prune_hidden: Does not enter directories whose name begins with a dot.
            sandbox: What may be read.
        """
        params = self._path(path, sandbox)
        params["options"] = {
            "maxDepth": max_depth,
            "maxDirectories": max_directories,
            "maxEntries": max_entries,
            "followDirectorySymlinks": follow_symlinks,
            "pruneHiddenDirectories": prune_hidden,
        }
        result, _ = await self._client.request("fs/walk", params)
        entries = [
            WalkEntry(native_text(uri_path(entry["path"])), entry["kind"])
            for entry in result["entries"]
        ]
        problems = {
            native_text(uri_path(error["path"])): str(error["message"])
            for error in result["errors"]
        }
        return WalkResult(entries, problems, result["truncated"])

    async def search(
        self,
        pattern: str,
        path: RemotePath = ".",
        *,
        regex: bool = False,
        case_sensitive: bool = True,
        glob: Optional[str] = None,
        max_matches: Optional[int] = None,
        context_lines: int = 0,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> SearchResult:
        """Finds lines in files. Respects ignore files.

        Args:
            pattern: Text, or with `regex` a regular expression in Rust's syntax.
            path: A directory or a file.
            regex: Whether `pattern` is a regular expression.
            case_sensitive: Whether case matters.
            glob: Searches only files that match.
            max_matches: Default 1000, at most 10 000.
            context_lines: Lines before and after each match.
            sandbox: What may be read.
        """
        params = {
            **self._path(path, sandbox),
            "pattern": pattern,
            "regex": regex,
            "caseSensitive": case_sensitive,
            "contextLines": context_lines,
            **collect_json({"glob": glob, "maxMatches": max_matches}),
        }
        result, _ = await self._client.request("fs/search", params)
        matches = [
            SearchMatch(
                path=native_text(uri_path(match["path"])),
                line=match["line"],
                column=match["column"],
                text=match["text"],
                before=list(match["before"]),
                after=list(match["after"]),
            )
            for match in result["matches"]
        ]
        return SearchResult(matches, result["truncated"])

    async def find(
        self,
        path: RemotePath = ".",
        *,
        glob: Optional[str] = None,
        query: Optional[str] = None,
        max_results: Optional[int] = None,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> FindResult:
        """Finds files and directories by name: with a `glob`, or with the letters of a `query`."""
        if (glob is None) == (query is None):
            raise ValueError("find needs either `glob` or `query`")
        params = {
            **self._path(path, sandbox),
            **collect_json({"glob": glob, "query": query, "maxResults": max_results}),
        }
        result, _ = await self._client.request("fs/find", params)
        return FindResult([native_text(uri_path(uri)) for uri in result["paths"]], result["truncated"])

    async def watch(
        self,
        path: RemotePath = ".",
        *,
        recursive: bool = True,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> AsyncWatch:
        """Reports changes of a file or a tree from now on."""
        params = {
            **self._path(path, sandbox),
            "watchId": self._client.new_handle_id(),
            "recursive": recursive,
        }
        watch = AsyncWatch(self._client, params)
        await watch._open()
        return watch

    # Networks.

    async def open_tunnel(
        self,
        port: int,
        host: Optional[str] = None,
        *,
        process: Optional[ProcessReference] = None,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> AsyncTunnel:
        """Connects to a TCP port of the environment.

        Args:
            port: The port.
            host: A name or an address, resolved there. Default: its loopback.
            process: Connects in the network of this process, or of the process with this id.
            sandbox: The policy that must allow the connection.

        Raises:
            HostError: The port does not answer.
            UnsupportedError: The server has no tunnels.
        """
        client = self._client
        tunnel = AsyncTunnel(client, client.new_tunnel_id())
        params = self._tunnel(host, port, process, sandbox)
        await tunnel._open({"tunnelId": tunnel.id, **params})
        return tunnel

    async def listen(
        self,
        port: int = 0,
        host: Optional[str] = None,
        *,
        process: Optional[ProcessReference] = None,
        sandbox: Optional[SandboxPolicy] = None,
    ) -> AsyncListener:
        """Accepts connections on a TCP port of the environment.

        Args:
            port: The port; 0 lets the environment choose.
            host: The address to listen on. Default: the loopback there.
            process: Listens in the network of this process, or of the process with this id.
            sandbox: The policy that must allow the listener.
        """
        client = self._client
        listen_id = client.new_tunnel_id()
        listener = AsyncListener(client, listen_id)
        params = self._tunnel(host, port, process, sandbox)
        await listener._open({"listenId": listen_id, **params})
        return listener

    async def forward(
        self,
        port: int,
        host: Optional[str] = None,
        *,
        local_port: int = 0,
        local_host: str = "127.0.0.1",
        process: Optional[ProcessReference] = None,
    ) -> AsyncForward:
        """Makes a TCP port of the environment a port of this machine.

        Args:
            port: The port in the environment.
            host: A name or an address, resolved there. Default: its loopback.
            local_port: The port here; 0 chooses a free one, which is `port` of the result.
            local_host: The address here. Programs of this machine can reach it.
            process: Connects in the network of this process, or of the process with this id.
        """
        self._check_tunnels()
        tasks: "Set[asyncio.Task[None]]" = set()

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                tunnel = await self.open_tunnel(port, host, process=process)
            except (ExecServerError, OSError):
                writer.transport.abort()
                return
            else:
                await pass_both_ways(tunnel, reader, writer)
            finally:
                tasks.discard(task)

        server = await asyncio.start_server(connect, local_host, local_port)
        forward = AsyncForward(self._client, server, tasks)
        if self._client.is_closed:
            await forward.close()
            raise ClosedError("the environment is closed")
        return forward

    async def ports(
        self, *, process: Optional[ProcessReference] = None
    ) -> "List[ListeningPort]":
        """Lists the TCP ports on which programs of the environment listen.

        Args:
            process: Lists those in the network of this process, or of the process with this id.
        """
        params = {} if process is None else {"processId": _process_id(process)}
        result, _ = await self._client.request("ports/list", params)
        return [
            ListeningPort(
                port=found["port"],
                address=found["address"],
                process_id=found.get("processId"),
                pid=found.get("osPid"),
                program=found.get("program"),
            )
            for found in result["ports"]
        ]

    def _tunnel(
        self,
        host: Optional[str],
        port: int,
        process: Optional[ProcessReference],
        sandbox: Optional[SandboxPolicy],
    ) -> Json:
        self._check_tunnels()
        params = collect_json({"host": host, "port": port})
        if process is not None:
            params["processId"] = _process_id(process)
        return self._sandboxed(params, sandbox)

    def _check_tunnels(self) -> None:
        if "tunnels" not in self._client.extensions:
            text = "this server has no tunnels: it is an older one"
            raise UnsupportedError(-32601, text, "tunnel/open")

    # The wire.

    async def request(
        self, method: str, params: Optional[Mapping[str, Any]] = None
    ) -> Dict[str, Any]:
        """Calls a method of the protocol that has no function here, and returns its result."""
        result, data = await self._client.request(method, dict(params or {}))
        if data is not None:
            raise ProtocolError(f"`{method}` has its own function")
        return result

    def _path(self, path: RemotePath, sandbox: Optional[SandboxPolicy]) -> Json:
        return self._sandboxed({"path": self._uri(path)}, sandbox)

    def _sandboxed(self, params: Json, sandbox: Optional[SandboxPolicy]) -> Json:
        if sandbox is not None:
            params["sandbox"] = sandbox.to_wire(self._base())
        return params


def _process_id(process: ProcessReference) -> str:
    return process if isinstance(process, str) else process.id


def _kind(value: Json) -> str:
    if value["isFile"]:
        return "file"
    if value["isDirectory"]:
        return "directory"
    return "symlink" if value.get("isSymlink") and value.get("mode") is None else "other"


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _command(args: Command, shell: bool) -> List[str]:
    if shell:
        if not isinstance(args, str):
            raise TypeError("with shell=True the command is a string")
        return ["/bin/sh", "-c", args]
    argv = [args] if isinstance(args, (str, bytes)) else list(args)
    if not argv:
        raise ValueError("the command is empty")
    texts: List[str] = []
    for argument in argv:
        value = os.fspath(cast("Any", argument))
        text = value if isinstance(value, str) else native_text(value)
        if not _is_text(text):
            raise ValueError(f"argument {argument!r} is not UTF-8, which the protocol needs")
        texts.append(text)
    return texts


def _terminal_size(terminal: TerminalOption) -> Optional[TerminalSize]:
    if terminal is None or terminal is False:
        return None
    if terminal is True:
        return TerminalSize()
    if isinstance(terminal, TerminalSize):
        return terminal
    return TerminalSize(*terminal)


def _is_pipe(target: OutputTarget) -> bool:
    return isinstance(target, int) and target == PIPE


def _is_discarded(target: OutputTarget) -> bool:
    return isinstance(target, int) and target == DEVNULL


def _is_joined(target: OutputTarget) -> bool:
    return isinstance(target, int) and target == STDOUT


def _decode(data: Union[bytes, str, None], encoding: str, errors: str) -> Optional[str]:
    return data.decode(encoding, errors) if isinstance(data, bytes) else data


async def _copy(stream: OutputStream, target: OutputTarget, default: Any) -> None:
    """Copies output to a file of this program, which may be slow."""
    loop = asyncio.get_running_loop()
    file = default if target is None else target
    async for chunk in stream:
        await loop.run_in_executor(None, _write_all, file, chunk)


def _write_all(target: Any, data: bytes) -> None:
    if target is None:
        return
    if isinstance(target, int):
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
        return
    raw = getattr(target, "buffer", None)
    if raw is not None:
        target.flush()
        raw.write(data)
        raw.flush()
    else:
        try:
            target.write(data)
        except TypeError:
            target.write(data.decode("utf-8", "replace"))


async def _kill(process: AsyncProcess) -> None:
    """Ends the command of a call that failed, even if the caller is being cancelled."""

    async def kill() -> None:
        try:
            process.discard_output()
            if not process._events.is_closed:
                await process.kill()
        except (ExecServerError, OSError):
            # The session is over, and with it the process.
            pass

    ending = asyncio.ensure_future(kill())
    try:
        await asyncio.wait({ending}, timeout=_CLEANUP_SECONDS)
    except asyncio.CancelledError:
        # It goes on; closing the environment waits for it.
        pass
