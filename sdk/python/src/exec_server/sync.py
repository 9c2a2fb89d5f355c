"""Environments, processes and files for ordinary code, over the same core as for asyncio.

Each environment has an event loop on a private thread. Its methods can be called from any
thread; Ctrl-C interrupts a call and cleans up behind it, as in :mod:`subprocess`. In a child of
:func:`os.fork` they raise :class:`ClosedError`, because the thread stays with the parent.
"""

from __future__ import annotations

import atexit
import io
import os
from types import TracebackType
from typing import IO, Any, Callable, Coroutine, Iterator, List, Optional, Set, Type, TypeVar, cast

from ._framing import Buffer
from ._loop_thread import LoopThread
from ._sync_methods import EnvironmentMethods
from .environment import AsyncEnvironment
from .errors import TimeoutExpired
from .files import AsyncFile, AsyncWatch
from .process import AsyncProcess, InputStream, OutputStream, Signal
from .tunnels import AsyncForward, AsyncListener, AsyncTunnel
from .types import ExitStatus, Snapshot, WatchEvent

Self = TypeVar("Self", bound="Environment")

_BUFFER_BYTES = 64 << 10
_FILE_BUFFER_BYTES = 4 << 20

#: What is not closed yet, also if the program dropped it.
_open_environments: "Set[Environment]" = set()


class Environment(EnvironmentMethods):
    """A place that runs commands and has files.

    Make one with :meth:`connect`, :meth:`local`, :meth:`program` or :meth:`hub`, and use it as a
    context manager. Closing it ends its processes, except detached ones.

    A connection that breaks is replaced: calls that wait go on, and no byte of output or input is
    lost or repeated. A call that may not be repeated fails with :class:`CallInterruptedError`.
    """

    def __init__(self, loop: LoopThread, inner: AsyncEnvironment) -> None:
        self._loop = loop
        self._inner = inner
        _open_environments.add(self)

    @classmethod
    def _open(
        cls: Type[Self], connect: Callable[[], Coroutine[Any, Any, AsyncEnvironment]]
    ) -> Self:
        loop = LoopThread()
        try:
            return cls(loop, loop.call(connect()))
        except BaseException:
            loop.stop()
            raise

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes of the session and the connection. Detached processes go on."""
        if not self._loop._stopped:
            try:
                self._loop.call(self._inner.close())
            finally:
                self._loop.stop()
        _open_environments.discard(self)

    def _process(
        self,
        inner: AsyncProcess,
        text: bool,
        encoding: Optional[str],
        errors: Optional[str],
    ) -> "Process":
        is_text = text or encoding is not None or errors is not None
        return Process(self._loop, inner, encoding or "utf-8" if is_text else None, errors)

    def _file(self, inner: AsyncFile) -> "IO[bytes]":
        raw = _RemoteFile(self._loop, inner)
        if inner.mode == "rb":
            return io.BufferedReader(raw, _FILE_BUFFER_BYTES)
        if inner.mode == "wb":
            return cast("IO[bytes]", io.BufferedWriter(cast(Any, raw), _FILE_BUFFER_BYTES))
        return io.BufferedRandom(raw, _FILE_BUFFER_BYTES)

    def _watch(self, inner: AsyncWatch) -> "Watch":
        return Watch(self._loop, inner)

    def _stream(self, inner: AsyncTunnel) -> "Tunnel":
        return Tunnel(self._loop, inner)

    def _listener(self, inner: AsyncListener) -> "Listener":
        return Listener(self._loop, inner)

    def _forward(self, inner: AsyncForward) -> "Forward":
        return Forward(self._loop, inner)


def _close_all() -> None:
    """Ends what the program forgot to close."""
    for environment in list(_open_environments):
        try:
            environment.close()
        except Exception:
            # The interpreter is ending, and the error has no reader.
            pass


def _handle_fork() -> None:
    """Leaves the environments of the parent to it."""
    for environment in _open_environments:
        environment._loop.handle_fork()
    _open_environments.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_handle_fork)


class Process:
    """A process in an environment, shaped like :class:`subprocess.Popen`.

    As a context manager it ends the input and waits for the process; after an exception it kills
    it.
    """

    def __init__(
        self,
        loop: LoopThread,
        inner: AsyncProcess,
        encoding: Optional[str],
        errors: Optional[str],
    ) -> None:
        self._loop = loop
        self._inner = inner
        self._encoding = encoding
        self._errors = errors
        #: The command.
        self.args: List[str] = inner.args
        #: A file object to write to, if started with `stdin=PIPE` or on a terminal.
        self.stdin: Optional[IO[Any]] = None
        #: A file object with the output; on a terminal all of it.
        self.stdout: Optional[IO[Any]] = None
        #: A file object with the errors.
        self.stderr: Optional[IO[Any]] = None
        if inner.stdin is not None:
            self.stdin = cast("IO[Any]", _StdinFile(loop, inner.stdin))
            if encoding is not None:
                self.stdin = _TextStdin(
                    cast("IO[bytes]", self.stdin),
                    encoding=encoding,
                    errors=errors or "strict",
                    write_through=True,
                    newline="",
                )
        self._out = _CollectedOutput(loop, inner.stdout, encoding, errors)
        self._err = _CollectedOutput(loop, inner.stderr, encoding, errors)
        self.stdout, self.stderr = self._out.file, self._err.file

    def __repr__(self) -> str:
        return repr(self._inner).replace("AsyncProcess", "Process", 1)

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._loop.call(self._inner.__aexit__(kind, error, trace))

    @property
    def id(self) -> str:
        """The id of the process at its server. Not an OS pid."""
        return self._inner.id

    @property
    def pid(self) -> Optional[int]:
        """The OS pid on the host, if the server says it."""
        return self._inner.pid

    @property
    def started_at_ms(self) -> Optional[int]:
        """Time of the start in Unix milliseconds, if the server says it."""
        return self._inner.started_at_ms

    @property
    def returncode(self) -> Optional[int]:
        """The command's status, 128 + n if signal n killed it, or `None` while it runs."""
        return self._inner.returncode

    @property
    def status(self) -> Optional[ExitStatus]:
        """How the process ended, or `None` while it runs."""
        return self._inner.status

    @property
    def truncated(self) -> bool:
        """Whether the first output was evicted before this environment attached."""
        return self._inner.truncated

    def poll(self) -> Optional[int]:
        """Returns the status if the command has exited."""
        return self._inner.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits until the command exits, and returns its status.

        Unread output can keep it from exiting, as with a pipe.

        Raises:
            TimeoutExpired: It runs longer than `timeout` seconds. It goes on.
        """
        return self._loop.call(self._inner.wait(timeout))

    def wait_closed(self) -> None:
        """Waits until the command has exited and its output has ended."""
        self._loop.call(self._inner.wait_closed())

    def communicate(
        self,
        input: Any = None,
        timeout: Optional[float] = None,
        max_output: Optional[int] = None,
    ) -> "tuple[Any, Any]":
        """Writes `input`, ends stdin, and returns all output and all errors that were not read.

        Calling it again after a timeout goes on, and returns everything; its input is ignored.

        Raises:
            TimeoutExpired: It takes longer than `timeout` seconds. The process goes on.
            OutputLimitError: A stream has more than `max_output` bytes. The process is killed.
        """
        if isinstance(input, str):
            input = input.encode(self._encoding or "utf-8", self._errors or "strict")
        # The files may have read more than they returned.
        self._inner._read_ahead = (self._out.take_ahead(), self._err.take_ahead())
        try:
            out, err = self._loop.call(self._inner.communicate(input, timeout, max_output))
        except TimeoutExpired as error:
            error.output = self._out.value_so_far(cast(bytes, error.output))
            error.stderr = self._err.value_so_far(cast(bytes, error.stderr))
            raise
        return self._out.value(out), self._err.value(err)

    def send_signal(self, signal: Signal) -> None:
        """Sends a signal to the command's process group: `SIGTERM`, 15 or `terminate`."""
        self._loop.call(self._inner.send_signal(signal))

    def terminate(self, timeout: Optional[float] = None) -> None:
        """Sends SIGTERM; with `timeout` the tree is killed that many seconds later."""
        self._loop.call(self._inner.terminate(timeout))

    def kill(self) -> None:
        """Kills the command and all its descendants."""
        self._loop.call(self._inner.kill())

    def resize(self, rows: int, cols: int) -> None:
        """Sets the size of the terminal."""
        self._loop.call(self._inner.resize(rows, cols))

    def snapshot(self) -> Snapshot:
        """Returns head and tail of everything the process has written, whether read or not."""
        return self._loop.call(self._inner.snapshot())

    def detach(self) -> None:
        """Stops following a detached process, which goes on."""

        async def detach() -> None:
            self._inner.detach()

        self._loop.call(detach())

    def discard_output(self) -> None:
        """Throws away the output that was not read, and everything to come."""

        async def discard() -> None:
            self._inner.discard_output()

        self._loop.call(discard())


class _NothingAheadError(Exception):
    """A file object has returned everything that it has read."""


class _OutputFile(io.RawIOBase):
    """Output of a process as a file."""

    def __init__(self, loop: LoopThread, stream: OutputStream) -> None:
        super().__init__()
        self._loop = loop
        self._stream = stream
        #: Read, but not returned yet: so an interrupted read loses nothing.
        self._fetched = b""
        self._has_all = False
        #: Whether reading fails instead of asking for more.
        self.is_detached = False

    def readable(self) -> bool:
        return True

    async def _fetch(self, size: int) -> None:
        self._fetched += await self._stream.read(size)

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        if not self._fetched and not self._has_all:
            if self.is_detached:
                raise _NothingAheadError
            self._loop.call(self._fetch(len(view)))
        data = self._fetched[: len(view)]
        size = len(data)
        view[:size] = data
        self._fetched = self._fetched[size:]
        return size

    def readall(self) -> bytes:
        if not self._has_all:
            self._loop.call(self._fetch(-1))
        data, self._fetched = self._fetched, b""
        return data

    def finish(self, rest: bytes) -> None:
        """Takes the rest of the output, which `communicate` has read."""
        self._fetched = rest
        self._has_all = True

    def close(self) -> None:
        if not self.closed:
            super().close()

            async def discard() -> None:
                self._stream.discard()

            # Also runs when the file is dropped, on any thread.
            self._loop.post(discard())


class _CollectedOutput:
    """A stream of a process as a file object, whose rest `communicate` returns."""

    def __init__(
        self,
        loop: LoopThread,
        stream: Optional[OutputStream],
        encoding: Optional[str],
        errors: Optional[str],
    ) -> None:
        self._encoding = encoding
        self._errors = errors or "strict"
        self._raw: Optional[_OutputFile] = None
        self._ahead: Any = None
        self._value: Any = None
        #: The file object. `None` if the output was discarded or joined to another stream.
        self.file: Optional[IO[Any]] = None
        if stream is not None:
            self._raw = _OutputFile(loop, stream)
            self.file = io.BufferedReader(self._raw, _BUFFER_BYTES)
            if encoding is not None:
                self.file = io.TextIOWrapper(self.file, encoding, self._errors)

    def take_ahead(self) -> int:
        """Takes what the file object has read and not returned. Returns how many bytes it is."""
        if self._ahead is None:
            parts: List[Any] = []
            file, raw = self.file, self._raw
            if file is not None and raw is not None and not file.closed:
                raw.is_detached = True
                try:
                    while True:
                        # Nothing beside the read ahead: the bytes of an unfinished character stay
                        # in the decoder.
                        if self._encoding is None:
                            parts.append(cast(io.BufferedReader, file).read1())
                        else:
                            parts.append(file.read(1))
                except _NothingAheadError:
                    pass
                finally:
                    raw.is_detached = False
            self._ahead = (b"" if self._encoding is None else "").join(parts)
        if self._encoding is None:
            return len(self._ahead)
        return len(self._ahead.encode(self._encoding, "replace"))

    def value(self, rest: bytes) -> Any:
        """Returns everything that was not read, of which this is the rest."""
        if self._value is None:
            file, raw = self.file, self._raw
            if file is None or raw is None or file.closed:
                text = self._encoding is not None
                self._value = rest.decode(cast(str, self._encoding), self._errors) if text else rest
            else:
                raw.finish(rest)
                self._value = self._ahead + file.read()
        return self._value

    def value_so_far(self, rest: bytes) -> Any:
        """Returns what was not read up to a timeout."""
        if self._encoding is None:
            return self._ahead + rest
        return self._ahead + rest.decode(self._encoding, "replace")


class _StdinFile(io.RawIOBase):
    """Input of a process as a file. Each write is complete when it returns."""

    def __init__(self, loop: LoopThread, stream: InputStream) -> None:
        super().__init__()
        self._loop = loop
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        view = memoryview(data).cast("B")
        if len(view):
            self._loop.call(self._stream.write(view))
        return len(view)

    def close(self) -> None:
        if not self.closed:
            super().close()
            if not self._loop._stopped:
                self._loop.call(self._stream.close())

    def __del__(self) -> None:
        # A file that is dropped does not end the input.
        pass


class _TextStdin(io.TextIOWrapper):
    """Input of a process as a text file."""

    def __del__(self) -> None:
        # A file that is dropped does not end the input.
        pass


class _RemoteFile(io.RawIOBase):
    """An open file as a file object."""

    def __init__(self, loop: LoopThread, inner: AsyncFile) -> None:
        super().__init__()
        self._loop = loop
        self._inner = inner
        self.name = inner.name
        self.mode = inner.mode

    def readable(self) -> bool:
        return self._inner.mode != "wb"

    def writable(self) -> bool:
        return self._inner.mode != "rb"

    def seekable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        inner = self._inner
        data = self._loop.call(inner._read_at(inner._position, len(view)))
        size = len(data)
        view[:size] = data
        # Last, so that an interrupted call is repeated at the same place.
        inner._position += size
        return size

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        inner = self._inner
        size = self._loop.call(inner._write_at(inner._position, memoryview(data).cast("B")))
        inner._position += size
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._loop.call(self._inner.seek(offset, whence))

    def tell(self) -> int:
        return self._inner.tell()

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._loop.is_current():
                # The file was dropped, and the collector runs here.
                self._loop.post(self._inner.close())
            elif not self._loop._stopped:
                self._loop.call(self._inner.close())


class Watch:
    """Changes below a path. Iterating over it yields :class:`WatchEvent`, and waits for them."""

    def __init__(self, loop: LoopThread, inner: AsyncWatch) -> None:
        self._loop = loop
        self._inner = inner
        #: Received, but not returned yet: so an interrupted call loses nothing.
        self._event: Optional[WatchEvent] = None

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[WatchEvent]:
        return self

    def __next__(self) -> WatchEvent:
        async def fetch() -> None:
            self._event = await anext(self._inner, None)

        if self._event is None:
            self._loop.call(fetch())
        event, self._event = self._event, None
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Ends the watch."""
        self._loop.call(self._inner.close())


class Tunnel:
    """A TCP stream into the environment. Iterating over it yields data as it arrives."""

    def __init__(self, loop: LoopThread, inner: AsyncTunnel) -> None:
        self._loop = loop
        self._inner = inner
        #: Read, but not returned yet: so an interrupted read loses nothing.
        self._fetched = b""

    def __enter__(self) -> "Tunnel":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._loop.call(self._inner.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[bytes]:
        while True:
            data = self.read(1 << 20)
            if not data:
                return
            yield data

    @property
    def id(self) -> str:
        """The id of the tunnel."""
        return self._inner.id

    def read(self, size: int = 1 << 16) -> bytes:
        """Returns what is there, at most `size` bytes, and `b""` at the end."""

        async def fetch() -> None:
            self._fetched = await self._inner.read(size)

        if not self._fetched:
            self._loop.call(fetch())
        data, self._fetched = self._fetched[:size], self._fetched[size:]
        return data

    def read_all(self) -> bytes:
        """Returns everything up to the end."""

        async def fetch() -> None:
            self._fetched += await self._inner.read_all()

        self._loop.call(fetch())
        data, self._fetched = self._fetched, b""
        return data

    def write(self, data: Buffer) -> None:
        """Writes bytes. Waits while the other end has a mebibyte that it did not take."""
        self._loop.call(self._inner.write(data))

    def write_eof(self) -> None:
        """Ends this direction; the other one goes on."""
        self._loop.call(self._inner.write_eof())

    def close(self) -> None:
        """Ends both directions, once the other end has taken what was written."""
        self._loop.call(self._inner.close())

    def abort(self) -> None:
        """Ends the tunnel at once. What was not delivered is lost."""

        async def abort() -> None:
            self._inner.abort()

        self._loop.call(abort())


class Listener:
    """A TCP port of the environment. Iterating over it yields a tunnel for each connection."""

    def __init__(self, loop: LoopThread, inner: AsyncListener) -> None:
        self._loop = loop
        self._inner = inner
        #: Accepted, but not returned yet: so an interrupted call loses nothing.
        self._accepted: Optional[AsyncTunnel] = None

    def __enter__(self) -> "Listener":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Tunnel]:
        while True:
            yield self.accept()

    @property
    def port(self) -> int:
        """The port in the environment."""
        return self._inner.port

    def accept(self) -> Tunnel:
        """Waits for a connection."""

        async def fetch() -> None:
            self._accepted = await self._inner.accept()

        if self._accepted is None:
            self._loop.call(fetch())
        tunnel = Tunnel(self._loop, cast(AsyncTunnel, self._accepted))
        self._accepted = None
        return tunnel

    def close(self) -> None:
        """Closes the port. Its tunnels stay."""
        self._loop.call(self._inner.close())


class Forward:
    """A port of this machine whose connections go into the environment."""

    def __init__(self, loop: LoopThread, inner: AsyncForward) -> None:
        self._loop = loop
        self._inner = inner

    def __enter__(self) -> "Forward":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    @property
    def host(self) -> str:
        """The address on this machine."""
        return self._inner.host

    @property
    def port(self) -> int:
        """The port on this machine."""
        return self._inner.port

    def close(self) -> None:
        """Closes the port and its connections."""
        self._loop.call(self._inner.close())


__all__ = ["Environment", "Forward", "Listener", "Process", "Tunnel", "Watch"]
