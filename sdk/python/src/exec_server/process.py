"""Processes of an environment, for asyncio."""

from __future__ import annotations

import asyncio
import uuid
from types import TracebackType
from typing import AsyncIterator, List, Optional, Sequence, Type, Union

from ._client import Client
from ._framing import Buffer, Json, decode_base64
from ._process_events import Collector, ProcessEvents, StreamBuffer
from .errors import (
    ExecServerError,
    OutputGapError,
    OutputLimitError,
    ProtocolError,
    StdinClosedError,
    TimeoutExpired,
    UnsupportedError,
)
from .types import ExitStatus, Snapshot, TerminalSize

#: Piece of a large write, and how many of them are under way at once.
_WRITE_BYTES = 256 << 10
_WRITES_AT_ONCE = 8
#: Longest line of :meth:`OutputStream.readline`.
_MAX_LINE_BYTES = 64 << 20

Signal = Union[str, int]

#: Signals by number, as the protocol names them.
_SIGNALS = {
    1: "hangup",
    2: "interrupt",
    3: "quit",
    9: "kill",
    10: "user1",
    12: "user2",
    15: "terminate",
    18: "continue",
    19: "stop",
}
_SIGNAL_NAMES = {
    "SIGHUP": "hangup",
    "SIGINT": "interrupt",
    "SIGQUIT": "quit",
    "SIGKILL": "kill",
    "SIGUSR1": "user1",
    "SIGUSR2": "user2",
    "SIGTERM": "terminate",
    "SIGCONT": "continue",
    "SIGSTOP": "stop",
}


def signal_name(signal: Signal) -> str:
    """Returns the protocol's name of a signal: `SIGTERM`, 15 and `terminate` are `terminate`.

    Raises:
        ValueError: The protocol has no such signal.
    """
    name = _SIGNALS.get(signal) if isinstance(signal, int) else _SIGNAL_NAMES.get(signal, signal)
    if name is None or name not in _SIGNAL_NAMES.values():
        known = ", ".join(sorted(_SIGNAL_NAMES))
        raise ValueError(f"invalid signal {signal!r}: use one of {known}")
    return name


class OutputStream:
    """Output of a process, for one reader.

    Iterating over it yields chunks as they arrive; :meth:`lines` yields lines. Unread
    output pauses the process once it is about a mebibyte, like a full pipe.

    A cancelled read loses nothing: the next one returns what it would have.
    """

    def __init__(self, buffer: StreamBuffer) -> None:
        self._buffer = buffer

    def __del__(self) -> None:
        # Without a reader the output must not pause the process. Runs on any thread.
        self._buffer.abandon()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[bytes]:
        while True:
            chunk = await self.read(1 << 20)
            if not chunk:
                return
            yield chunk

    async def read(self, size: int = -1) -> bytes:
        """Returns what is there, at most `size` bytes; waits if nothing is there yet.

        Returns `b""` at the end. Without `size`, or with a negative one, returns everything up to
        the end.

        Raises:
            OutputGapError: Output was evicted here. The next call goes on behind it.
        """
        if size == 0:
            return b""
        if size < 0:
            while await self._fill():
                pass
            return self._take(len(self._buffer.lookahead))
        buffer = self._buffer
        if not buffer.lookahead:
            while not buffer.chunks:
                if buffer.check():
                    return b""
                await buffer.wait()
            data = self._pop()
            if len(data) <= size:
                return data
            buffer.lookahead += data
        return self._take(size)

    async def readexactly(self, size: int) -> bytes:
        """Returns `size` bytes.

        Raises:
            asyncio.IncompleteReadError: The output ended before; `partial` has what there was.
        """
        while len(self._buffer.lookahead) < size:
            if not await self._fill():
                partial = self._take(len(self._buffer.lookahead))
                raise asyncio.IncompleteReadError(partial, size)
        return self._take(size)

    async def readuntil(self, separator: bytes = b"\n", limit: int = _MAX_LINE_BYTES) -> bytes:
        """Returns everything up to and including a separator.

        Raises:
            asyncio.IncompleteReadError: The output ended before.
            OutputLimitError: There is no separator within `limit` bytes.
        """
        if not separator:
            raise ValueError("the separator is empty")
        buffer = self._buffer.lookahead
        start = 0
        while True:
            found = buffer.find(separator, start)
            if found >= 0:
                return self._take(found + len(separator))
            if len(buffer) > limit:
                raise OutputLimitError(f"no separator within {limit} bytes")
            start = max(0, len(buffer) - len(separator) + 1)
            if not await self._fill():
                raise asyncio.IncompleteReadError(self._take(len(buffer)), None)

    async def readline(self) -> bytes:
        """Returns a line with its newline, the last one perhaps without, or `b""` at the end."""
        try:
            return await self.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def lines(self) -> AsyncIterator[bytes]:
        """Yields lines with their newlines."""
        while True:
            line = await self.readline()
            if not line:
                return
            yield line

    def at_eof(self) -> bool:
        """Returns whether everything was read and the output has ended."""
        buffer = self._buffer
        return not buffer.lookahead and not buffer.chunks and buffer.check()

    def discard(self) -> None:
        """Throws away what was not read, and everything to come."""
        self._buffer.divert(lambda data: None)

    def _take(self, size: int) -> bytes:
        lookahead = self._buffer.lookahead
        data = bytes(lookahead[:size])
        del lookahead[:size]
        return data

    def _pop(self) -> bytes:
        data = self._buffer.pop()
        if data is None:
            raise OutputGapError("output was evicted before it was read")
        return data

    async def _fill(self) -> bool:
        """Moves chunks into the buffer of this reader. Returns whether there were any."""
        buffer = self._buffer
        while not buffer.chunks:
            if buffer.check():
                return False
            await buffer.wait()
        while buffer.chunks:
            buffer.lookahead += self._pop()
        return True


class InputStream:
    """Input of a process."""

    def __init__(self, client: Client, process_id: str) -> None:
        self._client = client
        self._process_id = process_id
        self._lock = asyncio.Lock()
        self._nonce = uuid.uuid4().hex[:12]
        self._count = 0
        self._closed = False

    async def write(self, data: Buffer) -> None:
        """Writes bytes, and waits until the server has queued them for the process.

        That takes long if the process does not read. Over a broken connection each byte is written
        once. A cancelled call may have written a part.

        Raises:
            StdinClosedError: The process has no open stdin.
        """
        view = memoryview(data).cast("B")
        async with self._lock:
            if self._closed:
                raise StdinClosedError("stdin is closed")
            if len(view) <= _WRITE_BYTES:
                await self._write(bytes(view))
                return
            pending: "List[asyncio.Task[None]]" = []
            try:
                for start in range(0, len(view), _WRITE_BYTES):
                    if len(pending) == _WRITES_AT_ONCE:
                        await pending.pop(0)
                    piece = bytes(view[start : start + _WRITE_BYTES])
                    pending.append(asyncio.ensure_future(self._write(piece)))
                    # Lets it be sent, so that the order is that of the calls.
                    await asyncio.sleep(0)
                while pending:
                    await pending.pop(0)
            finally:
                for task in pending:
                    task.cancel()
                await asyncio.gather(*pending, return_exceptions=True)

    async def _write(self, data: bytes) -> None:
        params = {"processId": self._process_id, "writeId": self._write_id()}
        result, _ = await self._client.request("process/write", params, data)
        self._check(result)

    async def close(self) -> None:
        """Ends the input after everything written before. A terminal gets its end-of-file key.

        Does nothing if it has ended already.
        """
        async with self._lock:
            if self._closed:
                return
            params = {"processId": self._process_id, "writeId": self._write_id()}
            result, _ = await self._client.request("process/closeStdin", params)
            self._closed = not self.is_terminal
            try:
                self._check(result)
            except StdinClosedError:
                self._closed = True

    #: Whether it is a terminal, which stays writable after its end-of-file key.
    is_terminal = False

    def is_closing(self) -> bool:
        """Returns whether :meth:`close` was called."""
        return self._closed

    def _write_id(self) -> str:
        self._count += 1
        return f"{self._nonce}-{self._count}"

    def _check(self, result: Json) -> None:
        status = result.get("status")
        if status in ("stdinClosed", "unknownProcess", "starting"):
            texts = {
                "stdinClosed": "stdin is closed, or the process was started without one",
                "unknownProcess": "the process is gone",
                "starting": "the process does not run yet",
            }
            raise StdinClosedError(texts[status])
        if status not in (None, "accepted"):
            raise ProtocolError(f"unknown status `{status}` of a write: it may not have been queued")


class AsyncProcess:
    """A process in an environment, shaped like :class:`asyncio.subprocess.Process`.

    As an asynchronous context manager it ends the input and waits for the process; after an
    exception it kills it.
    """

    def __init__(
        self,
        client: Client,
        events: ProcessEvents,
        args: Sequence[str],
        tty: bool,
        has_stdin: bool,
    ) -> None:
        self._client = client
        self._events = events
        self._tty = tty
        #: The command.
        self.args: List[str] = list(args)
        #: Writes to the process, if it was started with `stdin=PIPE` or on a terminal.
        self.stdin: Optional[InputStream] = InputStream(client, events.id) if has_stdin else None
        #: Output; on a terminal all of it. `None` if it was discarded.
        self.stdout: Optional[OutputStream] = OutputStream(
            events.stream("pty" if tty else "stdout")
        )
        #: Errors; `None` on a terminal, and if they are discarded or joined to stdout.
        self.stderr: Optional[OutputStream] = None if tty else OutputStream(events.stream("stderr"))
        if self.stdin is not None and tty:
            self.stdin.is_terminal = True
        # What `communicate` has begun, so that it can be called again after a timeout.
        self._collectors: "Optional[tuple[Collector, Collector]]" = None
        self._feeding: "Optional[asyncio.Task[None]]" = None
        #: Bytes of both streams that `communicate` returns, and that were taken before.
        self._read_ahead = (0, 0)

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"exited with {self.returncode}"
        return f"<{type(self).__name__} {self.id!r} {self.args!r} {state}>"

    @property
    def id(self) -> str:
        """The id of the process at its server. Not an OS pid."""
        return self._events.id

    @property
    def pid(self) -> Optional[int]:
        """The OS pid on the host, if the server says it."""
        return self._events.os_pid

    @property
    def started_at_ms(self) -> Optional[int]:
        """Time of the start in Unix milliseconds, if the server says it."""
        return self._events.started_at_ms

    @property
    def returncode(self) -> Optional[int]:
        """The command's status, 128 + n if signal n killed it, or `None` while it runs."""
        status = self.status
        return None if status is None else status.returncode

    @property
    def status(self) -> Optional[ExitStatus]:
        """How the process ended, or `None` while it runs."""
        exit = self._events.exit
        return None if exit is None else ExitStatus.from_wire(exit)

    @property
    def truncated(self) -> bool:
        """Whether the first output was evicted before this environment attached."""
        return self._events.truncated

    async def __aenter__(self) -> "AsyncProcess":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        events = self._events
        if events.server_owned:
            self.detach()
            return
        if events.is_closed or events.failure is not None:
            return
        self.discard_output()
        if error is not None:
            await self.kill()
        elif self.stdin is not None:
            try:
                await self.stdin.close()
            except (StdinClosedError, UnsupportedError):
                pass
        await self.wait_closed()

    async def wait(self, timeout: Optional[float] = None) -> int:
        """Waits until the command exits, and returns its status.

        Unread output can keep it from exiting, as with a pipe: read it, or use
        :meth:`communicate`, or start with `stdout=DEVNULL`.

        Raises:
            TimeoutExpired: It runs longer than `timeout` seconds. It goes on.
            SessionLostError: The connection broke and the session was not resumed.
        """
        events = self._events

        async def wait() -> None:
            await events.wait(lambda events: events.exit is not None or events.is_closed)
            if events.exit is None:
                # Attached after its exit.
                params = {"processId": events.id, "until": "exited"}
                result, _ = await self._client.request("process/wait", params)
                events.exit = result

        if timeout is None:
            await wait()
        else:
            try:
                await asyncio.wait_for(wait(), timeout)
            except asyncio.TimeoutError:
                raise TimeoutExpired(self.args, timeout) from None
        assert self.returncode is not None
        return self.returncode

    async def wait_closed(self) -> None:
        """Waits until the command has exited and its output has ended.

        That can be later than the exit, if processes in the background hold the output.
        """
        await self._events.wait(lambda events: events.is_closed)

    async def communicate(
        self,
        input: Optional[Buffer] = None,
        timeout: Optional[float] = None,
        max_output: Optional[int] = None,
    ) -> "tuple[bytes, bytes]":
        """Writes `input`, ends stdin, and returns all output and all errors once both have ended.

        Calling it again after a timeout goes on, and returns everything; its input is ignored.

        Raises:
            TimeoutExpired: It takes longer than `timeout` seconds. The process goes on, and its
                output up to then is in the error.
            OutputLimitError: A stream has more than `max_output` bytes. The process is killed.
        """
        events = self._events
        exceeded = asyncio.Event()
        if self._collectors is None:
            out, err = (Collector(max_output, size) for size in self._read_ahead)
            if self.stdin is None and input:
                raise ValueError("input needs stdin=PIPE")
            if self.stdout is not None:
                self.stdout._buffer.divert(out)
            if self.stderr is not None:
                self.stderr._buffer.divert(err)
            if self.stdin is not None:
                self._feeding = asyncio.ensure_future(self._feed(input))
                # Marks an error as seen, if nothing waits for it any more.
                self._feeding.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._collectors = (out, err)
        out, err = self._collectors
        out.on_excess = err.on_excess = exceeded.set
        if out.exceeded or err.exceeded:
            exceeded.set()
        limiting: "Optional[asyncio.Task[None]]" = None
        if max_output is not None:
            limiting = asyncio.ensure_future(self._kill_on(exceeded))
        try:
            waiting = events.wait(lambda events: events.is_closed)
            if timeout is None:
                await waiting
            else:
                try:
                    await asyncio.wait_for(waiting, timeout)
                except asyncio.TimeoutError:
                    raise TimeoutExpired(self.args, timeout, out.value(), err.value()) from None
        finally:
            if limiting is not None:
                await _cancel(limiting)
        feeding = self._feeding
        if feeding is not None:
            await _cancel(feeding)
            if not feeding.cancelled():
                failure = feeding.exception()
                if failure is not None:
                    raise failure
        if out.exceeded or err.exceeded:
            text = f"command {self.args!r} wrote more than {max_output} bytes"
            raise OutputLimitError(text)
        return out.value(), err.value()

    async def _feed(self, input: Optional[Buffer]) -> None:
        assert self.stdin is not None
        try:
            if input:
                await self.stdin.write(input)
            await self.stdin.close()
        except StdinClosedError:
            # The command does not want it, as with a broken pipe.
            pass
        except UnsupportedError:
            if not self._tty:
                text = "this server cannot end the input of a process: start it without input"
                raise UnsupportedError(-32601, text, "process/closeStdin") from None
        except ExecServerError:
            if not self._events.is_closed and self._events.exit is None:
                raise

    async def _kill_on(self, event: asyncio.Event) -> None:
        await event.wait()
        await self.kill()

    async def send_signal(self, signal: Signal) -> None:
        """Sends a signal to the command's process group: `SIGTERM`, 15 or `terminate`."""
        params = {"processId": self.id, "signal": signal_name(signal)}
        await self._client.request("process/signal", params, urgent=True)

    async def terminate(self, timeout: Optional[float] = None) -> None:
        """Sends SIGTERM to the process group.

        With `timeout` the server kills what is left of the tree that many seconds later.
        """
        if timeout is None:
            await self.send_signal("terminate")
        else:
            await self._terminate({"type": "graceful", "timeoutMs": int(timeout * 1000)})

    async def kill(self) -> None:
        """Kills the command and all its descendants."""
        await self._terminate({"type": "force"})

    async def _terminate(self, mode: Json) -> None:
        params = {"processId": self.id, "mode": mode}
        repeat = mode["type"] == "force"
        await self._client.request("process/terminate", params, repeat=repeat, urgent=True)

    async def resize(self, rows: int, cols: int) -> None:
        """Sets the size of the terminal."""
        params = {"processId": self.id, **TerminalSize(rows, cols).to_wire()}
        await self._client.request("process/resize", params)

    async def snapshot(self) -> Snapshot:
        """Returns head and tail of everything the process has written, whether read or not."""
        result, _ = await self._client.request("process/snapshot", {"processId": self.id})
        return Snapshot(
            stdout=decode_base64(result["stdout"], "a snapshot"),
            stderr=decode_base64(result["stderr"], "a snapshot"),
            terminal=decode_base64(result["terminal"], "a snapshot"),
            truncated=result["truncated"],
            omitted_bytes=result["omittedBytes"],
            returncode=result["exitCode"],
            running=result["running"],
        )

    def detach(self) -> None:
        """Stops following a detached process, which goes on. Its output here ends.

        Raises:
            ValueError: The process belongs to the session, with which it ends.
        """
        if not self._events.server_owned:
            raise ValueError("the process is not detached: it ends with its session")
        self._client.detach_process(self._events)
        self._events.fail(ExecServerError(f"process {self.id} was detached"))

    def discard_output(self) -> None:
        """Throws away the output that was not read, and everything to come."""
        for stream in self._events.streams.values():
            stream.divert(lambda data: None)

    def join_stderr(self) -> None:
        """Joins stderr to stdout, in the order in which the server read them."""
        target = self._events.stream("stdout")
        self._events.streams["stderr"] = target
        self.stderr = None


async def _cancel(task: "asyncio.Task[None]") -> None:
    """Ends a task, and waits for it."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


__all__ = ["AsyncProcess", "InputStream", "OutputStream", "ProtocolError", "signal_name"]
