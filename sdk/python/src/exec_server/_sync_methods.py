"""Generated from `environment.py` by `scripts/generate_sync.py`: do not edit."""

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

    @classmethod
    def connect(cls: Type[Self], url: str, *, token: Optional[str]=None, headers: Optional[Mapping[str, str]]=None, tls: TlsOption=None, client_name: Optional[str]=None, reconnect_timeout: Optional[float]=None) -> 'Self':
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
        return cls._open(lambda: AsyncEnvironment.connect(url, token=token, headers=headers, tls=tls, client_name=client_name, reconnect_timeout=reconnect_timeout))

    @classmethod
    def local(cls: Type[Self], *, program: Optional[Union[str, 'os.PathLike[str]']]=None, client_name: Optional[str]=None, reconnect_timeout: Optional[float]=None) -> 'Self':
        """Connects to the server of this machine, and starts it if none runs.

        The server is shared by all programs of the account and exits when it is idle. Commands
        start in the working directory and with the variables of this process.

        Args:
            program: The `exec-server` program. Default: `$EXEC_SERVER`, else the one that was
                installed with this package, else the first on the PATH.
            client_name: For the logs of the server.
            reconnect_timeout: Seconds after which a broken connection is given up.
        """
        return cls._open(lambda: AsyncEnvironment.local(program=program, client_name=client_name, reconnect_timeout=reconnect_timeout))

    @classmethod
    def program(cls: Type[Self], argv: Sequence[Union[str, 'os.PathLike[str]']], *, env: Optional[Mapping[str, str]]=None, client_name: Optional[str]=None, reconnect_timeout: Optional[float]=None) -> 'Self':
        """Starts a program that speaks the protocol on its standard input and output.

        For example `["ssh", "box", "exec-server --listen stdio"]`. If the program ends, it is
        started again; its session goes on if the server behind it still has it.

        Args:
            argv: The program and its arguments.
            env: Variables in addition to those of this process.
            client_name: For the logs of the server.
            reconnect_timeout: Seconds after which a broken connection is given up.
        """
        return cls._open(lambda: AsyncEnvironment.program(argv, env=env, client_name=client_name, reconnect_timeout=reconnect_timeout))

    @classmethod
    def hub(cls: Type[Self], url: str, environment_id: str, *, token: str, program: Optional[Union[str, 'os.PathLike[str]']]=None, client_name: Optional[str]=None, reconnect_timeout: Optional[float]=None) -> 'Self':
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
        return cls._open(lambda: AsyncEnvironment.hub(url, environment_id, token=token, program=program, client_name=client_name, reconnect_timeout=reconnect_timeout))

    @property
    def info(self) -> EnvironmentInfo:
        """What the server says about its host."""
        return self._inner.info

    @property
    def server_version(self) -> Optional[str]:
        """Name and version of the server; `None` if it is the stock one."""
        return self._inner.server_version

    @property
    def extensions(self) -> 'frozenset[str]':
        """The extensions of the protocol that the server granted."""
        return self._inner.extensions

    @property
    def connections(self) -> int:
        """How many connections were opened so far, the first one included."""
        return self._inner.connections

    @property
    def cwd(self) -> str:
        """The directory at which relative paths start."""
        return self._inner.cwd

    def run(self, args: Command, *, input: Union[str, Buffer, None]=None, capture_output: bool=False, stdout: OutputTarget=None, stderr: OutputTarget=None, timeout: Optional[float]=None, check: bool=False, cwd: Optional[RemotePath]=None, env: Optional[Mapping[str, str]]=None, extra_env: Optional[Mapping[str, str]]=None, shell: bool=False, text: bool=False, encoding: Optional[str]=None, errors: Optional[str]=None, terminal: TerminalOption=None, sandbox: Optional[SandboxPolicy]=None, limits: Optional[Limits]=None, max_output: Optional[int]=None, options: Optional[Mapping[str, Any]]=None) -> 'CompletedProcess[Any]':
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
        return self._loop.call(self._inner.run(args, input=input, capture_output=capture_output, stdout=stdout, stderr=stderr, timeout=timeout, check=check, cwd=cwd, env=env, extra_env=extra_env, shell=shell, text=text, encoding=encoding, errors=errors, terminal=terminal, sandbox=sandbox, limits=limits, max_output=max_output, options=options))

    def spawn(self, args: Command, *, stdin: Optional[int]=None, stdout: Optional[int]=PIPE, stderr: Optional[int]=PIPE, cwd: Optional[RemotePath]=None, env: Optional[Mapping[str, str]]=None, extra_env: Optional[Mapping[str, str]]=None, shell: bool=False, terminal: TerminalOption=None, sandbox: Optional[SandboxPolicy]=None, limits: Optional[Limits]=None, detached: bool=False, durable: Optional[bool]=None, id: Optional[str]=None, arg0: Optional[str]=None, options: Optional[Mapping[str, Any]]=None, text: bool=False, encoding: Optional[str]=None, errors: Optional[str]=None) -> 'Process':
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
            text: The streams are text, by default UTF-8.
            encoding: The encoding; implies `text`.
            errors: How invalid text is handled; implies `text`.

        Raises:
            RemoteError: The host could not start it, or cannot enforce the policy.
            CallInterruptedError: The connection broke, and the command may have run briefly.
        """
        return self._process(self._loop.call(self._inner.spawn(args, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env, extra_env=extra_env, shell=shell, terminal=terminal, sandbox=sandbox, limits=limits, detached=detached, durable=durable, id=id, arg0=arg0, options=options)), text, encoding, errors)

    def attach(self, id: str, *, after_seq: Optional[int]=None, text: bool=False, encoding: Optional[str]=None, errors: Optional[str]=None) -> 'Process':
        """Follows a detached process, or takes over a process of another session.

        Its retained output is read first, and then what it writes. A process that was taken over
        is a detached one from then on.

        Args:
            id: The process id.
            after_seq: The number of an event; older ones are left out.
            text: The streams are text, by default UTF-8.
            encoding: The encoding; implies `text`.
            errors: How invalid text is handled; implies `text`.

        Raises:
            RemoteError: There is no such process.
        """
        return self._process(self._loop.call(self._inner.attach(id, after_seq=after_seq)), text, encoding, errors)

    def list(self, *, all: bool=False) -> 'List[ProcessInfo]':
        """Lists the processes of the session and the detached ones.

        With `all` also those of other sessions, which :meth:`attach` can take over.
        """
        return self._loop.call(self._inner.list(all=all))

    def history(self) -> 'List[ProcessInfo]':
        """Lists the recorded durable processes, running and ended, oldest first."""
        return self._loop.call(self._inner.history())

    def forget(self, id: str) -> None:
        """Removes a detached process that has finished, with its output."""
        return self._loop.call(self._inner.forget(id))

    def read_file(self, path: RemotePath, *, sandbox: Optional[SandboxPolicy]=None) -> 'bytes':
        """Returns the content of a file of at most 512 MiB. Use :meth:`open` for larger ones."""
        return self._loop.call(self._inner.read_file(path, sandbox=sandbox))

    def read_text(self, path: RemotePath, encoding: str='utf-8', errors: str='strict') -> 'str':
        """Returns the content of a file as text."""
        return self._loop.call(self._inner.read_text(path, encoding, errors))

    def write_file(self, path: RemotePath, data: Buffer, *, create_parents: bool=False, atomic: bool=False, mode: Optional[int]=None, sandbox: Optional[SandboxPolicy]=None) -> None:
        """Creates or replaces a file.

        Args:
            path: The file.
            data: Its whole content.
            create_parents: Makes missing directories.
            atomic: Readers see the old or the new content, never a mix.
            mode: Permission bits.
            sandbox: What may be written.
        """
        return self._loop.call(self._inner.write_file(path, data, create_parents=create_parents, atomic=atomic, mode=mode, sandbox=sandbox))

    def write_text(self, path: RemotePath, text: str, encoding: str='utf-8') -> None:
        """Creates or replaces a file with text."""
        return self._loop.call(self._inner.write_text(path, text, encoding))

    def open(self, path: RemotePath, mode: str='rb', *, sandbox: Optional[SandboxPolicy]=None) -> 'IO[bytes]':
        """Opens a file for access by blocks, of any size.

        Args:
            path: The file.
            mode: `rb` to read, `wb` to create or truncate, `r+b` to create or keep.
            sandbox: What may be used.
        """
        return self._file(self._loop.call(self._inner.open(path, mode, sandbox=sandbox)))

    def download(self, path: RemotePath, target: Union[str, 'os.PathLike[str]']) -> 'int':
        """Copies a file of the environment to a local one, and returns its size."""
        return self._loop.call(self._inner.download(path, target))

    def upload(self, source: Union[str, 'os.PathLike[str]'], path: RemotePath) -> 'int':
        """Copies a local file to the environment, and returns its size."""
        return self._loop.call(self._inner.upload(source, path))

    def make_directory(self, path: RemotePath, *, parents: bool=True, sandbox: Optional[SandboxPolicy]=None) -> None:
        """Makes a directory. With `parents` an existing one is fine and missing parents are made."""
        return self._loop.call(self._inner.make_directory(path, parents=parents, sandbox=sandbox))

    def remove(self, path: RemotePath, *, recursive: bool=False, missing_ok: bool=False, sandbox: Optional[SandboxPolicy]=None) -> None:
        """Removes a file, a link itself, or a directory; with `recursive` all that is in it."""
        return self._loop.call(self._inner.remove(path, recursive=recursive, missing_ok=missing_ok, sandbox=sandbox))

    def rename(self, source: RemotePath, destination: RemotePath, *, overwrite: bool=False, sandbox: Optional[SandboxPolicy]=None) -> None:
        """Renames atomically. Without `overwrite` nothing is ever replaced."""
        return self._loop.call(self._inner.rename(source, destination, overwrite=overwrite, sandbox=sandbox))

    def copy(self, source: RemotePath, destination: RemotePath, *, recursive: bool=False, sandbox: Optional[SandboxPolicy]=None) -> None:
        """Copies a file, or with `recursive` a directory, within the environment."""
        return self._loop.call(self._inner.copy(source, destination, recursive=recursive, sandbox=sandbox))

    def symlink(self, target: RemotePath, path: RemotePath, *, overwrite: bool=False, sandbox: Optional[SandboxPolicy]=None) -> None:
        """Makes `path` a link to `target`, like :func:`os.symlink`."""
        return self._loop.call(self._inner.symlink(target, path, overwrite=overwrite, sandbox=sandbox))

    def metadata(self, path: RemotePath, *, follow_symlinks: bool=True, sandbox: Optional[SandboxPolicy]=None) -> 'Metadata':
        """Returns type, size and times of a path, like :func:`os.stat`."""
        return self._loop.call(self._inner.metadata(path, follow_symlinks=follow_symlinks, sandbox=sandbox))

    def exists(self, path: RemotePath) -> 'bool':
        """Returns whether a path exists, like :func:`os.path.exists`."""
        return self._loop.call(self._inner.exists(path))

    def set_metadata(self, path: RemotePath, *, mode: Optional[int]=None, modified_at_ms: Optional[int]=None, sandbox: Optional[SandboxPolicy]=None) -> None:
        """Sets permission bits and modification time."""
        return self._loop.call(self._inner.set_metadata(path, mode=mode, modified_at_ms=modified_at_ms, sandbox=sandbox))

    def realpath(self, path: RemotePath) -> 'str':
        """Returns the path with every link resolved. It must exist."""
        return self._loop.call(self._inner.realpath(path))

    def read_directory(self, path: RemotePath='.', *, sandbox: Optional[SandboxPolicy]=None) -> 'List[DirectoryEntry]':
        """Lists a directory, sorted by the bytes of the names."""
        return self._loop.call(self._inner.read_directory(path, sandbox=sandbox))

    def walk(self, path: RemotePath='.', *, max_depth: int=64, max_directories: int=10000, max_entries: int=50000, follow_symlinks: bool=False, prune_hidden: bool=False, sandbox: Optional[SandboxPolicy]=None) -> 'WalkResult':
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
        return self._loop.call(self._inner.walk(path, max_depth=max_depth, max_directories=max_directories, max_entries=max_entries, follow_symlinks=follow_symlinks, prune_hidden=prune_hidden, sandbox=sandbox))

    def search(self, pattern: str, path: RemotePath='.', *, regex: bool=False, case_sensitive: bool=True, glob: Optional[str]=None, max_matches: Optional[int]=None, context_lines: int=0, sandbox: Optional[SandboxPolicy]=None) -> 'SearchResult':
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
        return self._loop.call(self._inner.search(pattern, path, regex=regex, case_sensitive=case_sensitive, glob=glob, max_matches=max_matches, context_lines=context_lines, sandbox=sandbox))

    def find(self, path: RemotePath='.', *, glob: Optional[str]=None, query: Optional[str]=None, max_results: Optional[int]=None, sandbox: Optional[SandboxPolicy]=None) -> 'FindResult':
        """Finds files and directories by name: with a `glob`, or with the letters of a `query`."""
        return self._loop.call(self._inner.find(path, glob=glob, query=query, max_results=max_results, sandbox=sandbox))

    def watch(self, path: RemotePath='.', *, recursive: bool=True, sandbox: Optional[SandboxPolicy]=None) -> 'Watch':
        """Reports changes of a file or a tree from now on."""
        return self._watch(self._loop.call(self._inner.watch(path, recursive=recursive, sandbox=sandbox)))

    def open_tunnel(self, port: int, host: Optional[str]=None, *, process: Optional[ProcessReference]=None, sandbox: Optional[SandboxPolicy]=None) -> 'Tunnel':
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
        return self._stream(self._loop.call(self._inner.open_tunnel(port, host, process=process, sandbox=sandbox)))

    def listen(self, port: int=0, host: Optional[str]=None, *, process: Optional[ProcessReference]=None, sandbox: Optional[SandboxPolicy]=None) -> 'Listener':
        """Accepts connections on a TCP port of the environment.

        Args:
            port: The port; 0 lets the environment choose.
            host: The address to listen on. Default: the loopback there.
            process: Listens in the network of this process, or of the process with this id.
            sandbox: The policy that must allow the listener.
        """
        return self._listener(self._loop.call(self._inner.listen(port, host, process=process, sandbox=sandbox)))

    def forward(self, port: int, host: Optional[str]=None, *, local_port: int=0, local_host: str='127.0.0.1', process: Optional[ProcessReference]=None) -> 'Forward':
        """Makes a TCP port of the environment a port of this machine.

        Args:
            port: The port in the environment.
            host: A name or an address, resolved there. Default: its loopback.
            local_port: The port here; 0 chooses a free one, which is `port` of the result.
            local_host: The address here. Programs of this machine can reach it.
            process: Connects in the network of this process, or of the process with this id.
        """
        return self._forward(self._loop.call(self._inner.forward(port, host, local_port=local_port, local_host=local_host, process=process)))

    def ports(self, *, process: Optional[ProcessReference]=None) -> 'List[ListeningPort]':
        """Lists the TCP ports on which programs of the environment listen.

        Args:
            process: Lists those in the network of this process, or of the process with this id.
        """
        return self._loop.call(self._inner.ports(process=process))

    def request(self, method: str, params: Optional[Mapping[str, Any]]=None) -> 'Dict[str, Any]':
        """Calls a method of the protocol that has no function here, and returns its result."""
        return self._loop.call(self._inner.request(method, params))
