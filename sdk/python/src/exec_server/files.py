"""Open files and watches of an environment, for asyncio."""

from __future__ import annotations

import asyncio
import base64
import os
from collections import deque
from types import TracebackType
from typing import AsyncIterator, Awaitable, Callable, Deque, List, Optional, Tuple, Type, TypeVar

from ._client import Client
from ._framing import Buffer, Json, decode_base64
from ._paths import native_text, uri_path
from .errors import (
    CallInterruptedError,
    ClosedError,
    ConnectionLostError,
    ExecServerError,
    InvalidRequestError,
    NotFoundError,
    ProtocolError,
)
from .types import FileChange, WatchEvent

#: Largest block that the protocol allows.
BLOCK_BYTES = 1 << 20
#: Blocks under way at once.
_BLOCKS_AT_ONCE = 4
#: Changes that wait for a reader. More are reported as an overflow.
_MAX_CHANGES = 16_384
#: Repetitions of a block over broken connections.
_MAX_ATTEMPTS = 1000

Result = TypeVar("Result")

_MODES = {"rb": "read", "wb": "replace", "r+b": "update"}


class AsyncFile:
    """An open file. Use :meth:`AsyncEnvironment.open`.

    Reading and writing go on over a broken connection: the file is opened again, and the block is
    repeated at its place. If a file that is read was changed meanwhile, reading fails instead of
    mixing two contents.
    """

    def __init__(self, client: Client, path: str, uri: str, mode: str, sandbox: Optional[Json]):
        if mode not in _MODES:
            raise ValueError(f"invalid mode {mode!r}: use one of {', '.join(_MODES)}")
        self._client = client
        self._uri = uri
        self._open_mode = _MODES[mode]
        self._sandbox = sandbox
        self._handle = ""
        self._connection = 0
        self._identity: Optional[Tuple[int, int]] = None
        self._reopening = asyncio.Lock()
        self._position = 0
        self._is_closed = False
        #: The path as it was given.
        self.name = path
        self.mode = mode

    async def __aenter__(self) -> "AsyncFile":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for block in self.blocks():
            yield block

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._is_closed

    async def _open(self) -> None:
        is_read = self._open_mode == "read"
        if is_read:
            self._identity = await self._current_identity()
        await self._open_handle(self._open_mode)

    async def _current_identity(self) -> Tuple[int, int]:
        params = self._with_sandbox({"path": self._uri})
        result, _ = await self._client.request("fs/getMetadata", params)
        return int(result["size"]), int(result["modifiedAtMs"])

    async def _open_handle(self, mode: str) -> None:
        handle = self._client.new_handle_id()
        params = self._with_sandbox({"handleId": handle, "path": self._uri})
        if mode != "read":
            params["mode"] = mode
        client = self._client

        def close() -> None:
            client.send_unanswered("fs/close", {"handleId": handle})

        await client.request("fs/open", params, on_orphaned=close, repeat=True)
        self._handle = handle
        self._connection = client.connections

    def _with_sandbox(self, params: Json) -> Json:
        if self._sandbox is not None:
            params["sandbox"] = self._sandbox
        return params

    async def _reopen(self) -> None:
        """Opens the file again on a new connection."""
        async with self._reopening:
            if self._connection == self._client.connections:
                return
            if self._open_mode == "read":
                if await self._current_identity() != self._identity:
                    text = f"`{self.name}` was changed while the connection was broken"
                    raise ExecServerError(text)
                await self._open_handle("read")
            else:
                # Keeps what was written.
                await self._open_handle("update")

    async def _on_handle(self, operation: Callable[[], Awaitable[Result]]) -> Result:
        """Does something with the handle, again if the connection breaks."""
        if self._is_closed:
            raise ValueError("the file is closed")
        for _ in range(_MAX_ATTEMPTS):
            if self._connection != self._client.connections:
                await self._reopen()
            try:
                return await operation()
            except CallInterruptedError:
                # The next call waits for the connection, and finds out that it is a new one.
                await self._client.wait_connected()
            except NotFoundError:
                # The call was sent on a connection that does not know the handle.
                if self._connection == self._client.connections:
                    raise
        raise ConnectionLostError(f"the connection broke {_MAX_ATTEMPTS} times in one block")

    async def read_block(self, offset: int, size: int = BLOCK_BYTES) -> Tuple[bytes, bool]:
        """Returns up to a mebibyte at `offset`, and whether the file ends there."""

        async def read() -> Tuple[bytes, bool]:
            params = {"handleId": self._handle, "offset": offset, "len": size}
            result, data = await self._client.request("fs/readBlock", params)
            if data is None:
                data = decode_base64(result.get("chunk"), "`fs/readBlock`")
            return data, bool(result["eof"])

        return await self._on_handle(read)

    async def write_block(self, offset: int, data: Buffer) -> None:
        """Writes up to a mebibyte at `offset`."""

        async def write() -> None:
            params = {"handleId": self._handle, "offset": offset}
            await self._client.request("fs/writeBlock", params, data)

        await self._on_handle(write)

    async def blocks(
        self, offset: Optional[int] = None, length: Optional[int] = None
    ) -> AsyncIterator[bytes]:
        """Yields the content in blocks, from the position or `offset` on, and reads ahead."""
        start = self._position if offset is None else offset
        end = None if length is None else start + length
        pending: "Deque[asyncio.Task[Tuple[bytes, bool]]]" = deque()
        following = start
        try:
            while True:
                while len(pending) < _BLOCKS_AT_ONCE and (end is None or following < end):
                    size = BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - following)
                    pending.append(asyncio.ensure_future(self.read_block(following, size)))
                    following += size
                if not pending:
                    return
                data, eof = await pending.popleft()
                if offset is None:
                    self._position += len(data)
                if data:
                    yield data
                if eof:
                    return
        finally:
            await _end(pending)

    async def read(self, size: int = -1) -> bytes:
        """Returns `size` bytes from the position on, fewer at the end; without it everything.

        A cancelled call leaves the position where it was.
        """
        data = await self._read_at(self._position, size)
        self._position += len(data)
        return data

    async def _read_at(self, offset: int, size: int = -1) -> bytes:
        length = None if size < 0 else size
        return b"".join([block async for block in self.blocks(offset, length)])

    async def write(self, data: Buffer) -> int:
        """Writes all bytes at the position, and returns how many they are.

        A cancelled call may have written a part, and leaves the position where it was.
        """
        size = await self._write_at(self._position, data)
        self._position += size
        return size

    async def _write_at(self, offset: int, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        pending: "Deque[asyncio.Task[None]]" = deque()
        try:
            for start in range(0, len(view), BLOCK_BYTES):
                if len(pending) == _BLOCKS_AT_ONCE:
                    await pending.popleft()
                piece = bytes(view[start : start + BLOCK_BYTES])
                writing = self.write_block(offset + start, piece)
                pending.append(asyncio.ensure_future(writing))
            while pending:
                await pending.popleft()
        finally:
            await _end(pending)
        return len(view)

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position, and returns it."""
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += (await self._current_identity())[0]
        if offset < 0:
            raise ValueError(f"negative position {offset}")
        self._position = offset
        return offset

    def tell(self) -> int:
        """Returns the position."""
        return self._position

    async def close(self) -> None:
        """Closes the file."""
        if not self._is_closed:
            self._is_closed = True
            if self._connection == self._client.connections:
                try:
                    await self._client.request("fs/close", {"handleId": self._handle})
                except (ConnectionLostError, ClosedError):
                    # The server closes it with its connection.
                    pass


class AsyncWatch:
    """Changes below a path. Use :meth:`AsyncEnvironment.watch`.

    Iterating over it yields :class:`WatchEvent`; it ends when the watched path is gone. After a
    broken connection the watch begins again and reports an overflow.
    """

    def __init__(self, client: Client, params: Json) -> None:
        self._client = client
        self._params = params
        self._id: str = params["watchId"]
        self._changes: List[FileChange] = []
        self._overflow = False
        self._ended = False
        self._failure: Optional[ExecServerError] = None
        self._news = asyncio.Event()

    async def __aenter__(self) -> "AsyncWatch":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    def __aiter__(self) -> "AsyncWatch":
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._changes and not self._overflow:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        changes, self._changes = self._changes, []
        overflow, self._overflow = self._overflow, False
        return WatchEvent(changes, overflow)

    async def _open(self) -> None:
        self._client.watches[self._id] = self
        try:
            await self._client.request(
                "fs/watch", self._params, on_orphaned=self._unwatch, repeat=True
            )
        except BaseException:
            self._client.watches.pop(self._id, None)
            raise
        self._is_open = True

    _is_open = False

    def _unwatch(self) -> None:
        self._client.send_unanswered("fs/unwatch", {"watchId": self._id})

    def handle_resume(self) -> None:
        """Begins again on a new connection."""
        if self._is_open and not self._ended:

            def handle(result: Optional[Json], error: Optional[ExecServerError]) -> None:
                if isinstance(error, (NotFoundError, InvalidRequestError)):
                    self._finish(None)
                elif error is not None and not isinstance(error, ConnectionLostError):
                    self._finish(error)

            self._client.send_with_sink("fs/watch", self._params, handle)
            self._overflow = True
            self._news.set()

    def handle_changed(self, params: Json) -> None:
        """Handles `fs/changed`."""
        if self._ended:
            return
        for change in params["changes"]:
            if len(self._changes) >= _MAX_CHANGES:
                self._overflow = True
                break
            path = native_text(uri_path(change["path"]))
            self._changes.append(FileChange(path, change["kind"]))
        self._overflow = self._overflow or bool(params["overflow"])
        if params.get("ended"):
            self._finish(None)
        self._news.set()

    def handle_end(self, error: ExecServerError) -> None:
        """Handles the end of the session."""
        self._finish(error)

    def _finish(self, error: Optional[ExecServerError]) -> None:
        self._ended = True
        self._failure = self._failure or error
        self._client.watches.pop(self._id, None)
        self._news.set()

    async def close(self) -> None:
        """Ends the watch."""
        if not self._ended:
            self._finish(None)
            try:
                await self._client.request("fs/unwatch", {"watchId": self._id})
            except (ConnectionLostError, ClosedError):
                # It ended with its connection.
                pass


def link_target(value: Json) -> Optional[str]:
    """Returns the text of a link from a result with details."""
    raw = value.get("linkTargetBase64")
    if raw is not None:
        try:
            return native_text(base64.b64decode(raw, validate=True))
        except ValueError:
            raise ProtocolError("a link target is not base64") from None
    target = value.get("linkTarget")
    return None if target is None else str(target)


async def _end(tasks: "Deque[asyncio.Task[Result]]") -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)
