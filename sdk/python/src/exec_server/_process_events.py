"""The numbered events of one process: put in order, buffered for readers, acknowledged.

Invariant: a reader gets each byte once and in order, whatever connections broke in between. The
server keeps what is not acknowledged, so what was lost on the way is read again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, NamedTuple, Optional, Set

from ._framing import Json, decode_base64
from .errors import ExecServerError, ProcessFailedError

if TYPE_CHECKING:
    from ._client import Client

#: Maximum number of events that wait for an earlier one.
_MAX_EARLY_EVENTS = 65_536
#: Maximum output that waits for an earlier event.
_MAX_EARLY_BYTES = 4 << 20
#: Largest chunk that a server may send.
_MAX_CHUNK_BYTES = 1 << 20
#: Consumed output that makes an acknowledgement due: a sixteenth of the server's window.
_ACK_BYTES = 64 << 10
_ACK_EVENTS = 256
#: Output in memory above which events of a durable process are dropped, to be read again later.
#: Ordinary processes stay below: the server pauses them at 1 MiB.
_MAX_BUFFERED_BYTES = 4 << 20
#: Output in memory below which dropped events are read.
_LOW_BUFFERED_BYTES = 1 << 20
#: Output in memory above which a detached process is released, to be attached again later. What is
#: on its way comes on top.
_MAX_ATTACHED_BYTES = 1 << 20
_LOW_ATTACHED_BYTES = 256 << 10
#: Page of a read after a larger one was interrupted by a disconnect.
_SMALL_PAGE_BYTES = 32 << 10
_PAGE_BYTES = 4 << 20
#: A page of this size may have been cut by a server that reads from a journal.
_LARGE_PAGE_BYTES = 512 << 10
_LARGE_PAGE_CHUNKS = 4096

_EXITED = "exited"
_CLOSED = "closed"


class Event(NamedTuple):
    """An event of a process."""

    seq: int
    #: `stdout`, `stderr`, `pty` or another stream; or `exited` or `closed`.
    kind: str
    data: bytes
    exit: Optional[Json]


class LostEventsError(Exception):
    """Events of the process cannot be had any more, or contradict each other."""


class EventOrder:
    """Puts the events of one process in the order of their numbers, which have no gaps."""

    def __init__(self) -> None:
        self.next = 1
        self.ready: Deque[Event] = deque()
        self._early: Dict[int, Event] = {}
        self._early_bytes = 0
        #: The last event that was dropped because too many wait.
        self.dropped_through = 0
        self.exit_seen = False

    @property
    def last(self) -> int:
        """The last event that was put in order."""
        return self.next - 1

    @property
    def seen(self) -> int:
        """The highest number received."""
        return max(self.last, self.dropped_through, max(self._early, default=0))

    @property
    def gap(self) -> Optional[int]:
        """The last event before a gap, if events wait behind one or were dropped there."""
        return self.last if self._early or self.dropped_through > self.last else None

    def handle_event(self, event: Event) -> None:
        """Handles a live event. Drops repeated ones, and those for which there is no room."""
        full = len(self._early) >= _MAX_EARLY_EVENTS or self._early_bytes >= _MAX_EARLY_BYTES
        if event.seq > self.next and full:
            self.drop(event)
        else:
            self.insert(event)

    def drop(self, event: Event) -> None:
        """Drops an event, for which the server is asked again."""
        self.dropped_through = max(self.dropped_through, event.seq)

    def insert(self, event: Event) -> None:
        """Handles an event, also one that was asked for."""
        if event.kind == _CLOSED and event.seq == 0:
            # The oldest servers do not number the close: it follows all other events.
            event = event._replace(seq=max(self._early, default=self.last) + 1)
        seq = event.seq
        if seq < self.next or seq in self._early:
            return
        if len(event.data) > _MAX_CHUNK_BYTES:
            raise LostEventsError(f"event {seq} is larger than {_MAX_CHUNK_BYTES} bytes")
        if event.kind == _EXITED:
            self.exit_seen = True
        if seq > self.next:
            self._early[seq] = event
            self._early_bytes += len(event.data)
            return
        self.ready.append(event)
        self.next += 1
        while self._early:
            following = self._early.pop(self.next, None)
            if following is None:
                break
            self._early_bytes -= len(following.data)
            self.ready.append(following)
            self.next += 1

    def skip_to(self, seq: int) -> None:
        """Goes on at an event, leaving out what was evicted before it."""
        self.next = seq

    def handle_partial_page(self, page: Json, after: int) -> int:
        """Handles a page of `process/read` that others follow. Returns where they begin."""
        if page.get("exitSeq") is not None and page.get("exitCode") is not None:
            self._handle_exit(page["exitSeq"], page)
        self._handle_chunks(page)
        end = int(page["nextSeq"]) - 1
        if end <= after:
            raise LostEventsError(f"`process/read` after {after} made no progress")
        return end

    def handle_page(self, page: Json) -> None:
        """Handles the last page of `process/read`. What it does not contain is lost."""
        exit_unknown = page.get("exitCode") is not None and not self.exit_seen
        self._handle_chunks(page)
        end = int(page["nextSeq"])
        closed = bool(page.get("closed"))
        if exit_unknown:
            seq = page.get("exitSeq")
            if seq is None:
                # Older servers do not report its number: it is the only one that is missing.
                seq = self._only_missing(end - 1 if closed else end)
            if seq is not None:
                self._handle_exit(seq, page)
        if closed:
            self.insert(Event(end - 1, _CLOSED, b"", None))
        if self.next < end:
            last = min(min(self._early, default=end), end) - 1
            raise LostEventsError(f"events {self.next} to {last} are lost")

    def _handle_exit(self, seq: int, page: Json) -> None:
        if self.exit_seen:
            return
        if seq < self.next or seq in self._early:
            raise LostEventsError(f"`process/read` reports an exit at {seq}, which was output")
        self.insert(Event(seq, _EXITED, b"", page))

    def _handle_chunks(self, page: Json) -> None:
        for chunk in page["chunks"]:
            data = decode_base64(chunk["chunk"], "a chunk of `process/read`")
            self.insert(Event(chunk["seq"], chunk["stream"], data, None))

    def _only_missing(self, end: int) -> Optional[int]:
        missing = [seq for seq in range(self.next, end) if seq not in self._early]
        return missing[0] if len(missing) == 1 else None


class _Gap:
    """Stands in a stream for output that was evicted."""


class StreamBuffer:
    """Received output of one stream that waits for a reader, or the function that takes it."""

    def __init__(self, owner: "ProcessEvents") -> None:
        self._owner = owner
        #: Chunks with their numbers. `None` data stands for output that was evicted.
        self.chunks: Deque["tuple[int, Optional[bytes]]"] = deque()
        #: Consumed, but not yet returned: so a cancelled read loses nothing.
        self.lookahead = bytearray()
        self._waiters: "List[asyncio.Future[None]]" = []
        self._sink: Optional[Callable[[bytes], None]] = None

    def push(self, seq: int, data: Optional[bytes]) -> None:
        """Takes a chunk from the server."""
        if self._sink is not None:
            if data is not None:
                self._sink(data)
                self._owner.consumed(len(data))
            return
        self.chunks.append((seq, data))
        if data is not None:
            self._owner.buffered += len(data)
            self._owner.client.handle_buffered(len(data))
        self.wake()

    def divert(self, sink: Callable[[bytes], None]) -> None:
        """Passes all output to a function, beginning with what is buffered."""
        if self.lookahead:
            sink(bytes(self.lookahead))
            self.lookahead.clear()
        while self.chunks:
            data = self.pop()
            if data is not None:
                sink(data)
        self._sink = sink

    def abandon(self) -> None:
        """Throws the output away soon, unless a function takes it. Called on any thread."""
        if self._sink is None and not self._owner.is_closed:
            self._owner.client.call_soon(self._divert_if_unread)

    def _divert_if_unread(self) -> None:
        if self._sink is None:
            self.divert(lambda data: None)

    def pop(self) -> Optional[bytes]:
        """Takes the first chunk. `None` stands for output that was evicted."""
        _, data = self.chunks.popleft()
        if data is not None:
            self._owner.buffered -= len(data)
            self._owner.client.handle_buffered(-len(data))
            self._owner.consumed(len(data))
        return data

    def check(self) -> bool:
        """Returns whether the stream has ended.

        Raises:
            ExecServerError: No more output will come, although the stream has not ended.
        """
        if self._owner.is_closed:
            return True
        if self._owner.failure is not None:
            raise self._owner.failure
        return False

    async def wait(self) -> None:
        """Waits until there may be a chunk, or the end."""
        waiter: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            with self._owner.client.awaiting_event():
                await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Wakes the readers."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class ProcessEvents:
    """The state of one process at the client: what has arrived, what was read, how it ended."""

    def __init__(self, client: "Client", process_id: str, server_owned: bool) -> None:
        self.client = client
        self.id = process_id
        #: Belongs to the server (a detached process), so it is followed by `process/attach`.
        self.server_owned = server_owned
        self.order = EventOrder()
        self.streams: Dict[str, StreamBuffer] = {}
        #: Unread output in memory.
        self.buffered = 0
        self.exit: Optional[Json] = None
        self.is_closed = False
        self.failure: Optional[ExecServerError] = None
        self.os_pid: Optional[int] = None
        self.started_at_ms: Optional[int] = None
        #: Output before the first event that could be had was evicted.
        self.truncated = False
        #: The response to `process/attach` is outstanding.
        self.is_attaching = False
        #: Attached later than at its start: the replay may begin with a gap.
        self.replays_from: Optional[int] = None
        #: A detached process whose reader lags is not followed until there is room again.
        self.is_released = False
        self._pending_read: Optional["tuple[int, Optional[int]]"] = None
        self._last_seen = 0
        self._read_to = 0
        self._small_pages = False
        #: Another page follows the last one.
        self._reads_on = False
        self._acked = 0
        self._unacked_bytes = 0
        self._unacked_events = 0
        self._waiters: "Set[asyncio.Future[None]]" = set()

    def stream(self, name: str) -> StreamBuffer:
        """Returns the buffer of a stream."""
        stream = self.streams.get(name)
        if stream is None:
            stream = self.streams[name] = StreamBuffer(self)
        return stream

    # Events from the server.

    def handle_output(self, params: Json, data: Optional[bytes]) -> None:
        """Handles `process/output`."""
        if data is None:
            data = decode_base64(params.get("chunk"), "`process/output`")
        self._handle_event(Event(params["seq"], params["stream"], data, None))

    def handle_exited(self, params: Json) -> None:
        """Handles `process/exited`."""
        self._handle_event(Event(params["seq"], _EXITED, b"", params))

    def handle_closed(self, params: Json) -> None:
        """Handles `process/closed`."""
        self._handle_event(Event(params.get("seq", 0), _CLOSED, b"", None))

    def _handle_event(self, event: Event) -> None:
        if self.failure is not None or self.is_closed:
            return
        order = self.order
        try:
            if self.server_owned:
                self._admit_attached(event)
            elif event.data and self.buffered >= _MAX_BUFFERED_BYTES and self.client.acknowledges:
                # A durable process is not paused: the journal keeps what has no room here.
                order.drop(event)
            else:
                order.handle_event(event)
        except LostEventsError as error:
            self.client.fail_process(self, ProcessFailedError(f"process {self.id}: {error}"))
            return
        self._deliver()
        self.fill_gap()

    def _admit_attached(self, event: Event) -> None:
        """Handles an event of a detached process. They are sent in order, and numbers are missing
        where output was evicted."""
        order = self.order
        if event.seq > order.next:
            if self.replays_from == order.last:
                self.truncated = True
            else:
                for stream in self.streams.values():
                    stream.push(event.seq - 1, None)
            order.skip_to(event.seq)
        self.replays_from = None
        order.insert(event)
        if self.buffered >= _MAX_ATTACHED_BYTES and not self.is_released:
            self.is_released = True
            self.client.release(self)

    def fill_gap(self) -> None:
        """Asks for missing events, if there are any and there is room for them."""
        if self._pending_read is not None or self.server_owned or self.is_closed:
            return
        after = self._read_to if self._reads_on else self.order.gap
        if after is not None and self.buffered < _LOW_BUFFERED_BYTES:
            self._begin_read(after)

    def _begin_read(self, after: int) -> None:
        dropping = self.order.dropped_through > self.order.last
        limit = _SMALL_PAGE_BYTES if self._small_pages else _PAGE_BYTES if dropping else None
        self._pending_read = (after, limit)
        self._reads_on = False
        self._last_seen = self.order.seen
        self.client.read_output(self, after, limit)

    def begin_resume(self) -> None:
        """Asks for everything after the last event, on a new connection."""
        # The last acknowledgement may have been lost with the connection.
        self._acked = 0
        self.acknowledge()
        self._begin_read(max(self.order.last, self._read_to))

    def handle_read_interrupted(self) -> None:
        """Notes that the connection broke during a read: the next pages are small."""
        if self._pending_read is not None:
            self._small_pages = True
            self._pending_read = None

    def handle_page(self, page: Json) -> None:
        """Handles the response to `process/read`."""
        pending, self._pending_read = self._pending_read, None
        if pending is None or self.failure is not None or self.is_closed:
            return
        after, limit = pending
        end = int(page["nextSeq"]) - 1
        chunks = page["chunks"]
        try:
            is_part = False
            if chunks:
                ends_at_chunk = end == chunks[-1]["seq"]
                is_part = limit is not None or (ends_at_chunk and _is_large(chunks))
            if is_part:
                self._read_to = self.order.handle_partial_page(page, after)
                self._deliver()
                # Goes on when there is room.
                self._reads_on = True
                self.fill_gap()
                return
            if end < self._last_seen:
                text = f"`process/read` ends at {end}, but event {self._last_seen} was received"
                raise LostEventsError(text)
            self.order.handle_page(page)
            self._small_pages = False
        except LostEventsError as error:
            self.client.fail_process(self, ProcessFailedError(f"process {self.id}: {error}"))
            return
        self._deliver()
        self.fill_gap()

    def _deliver(self) -> None:
        ready = self.order.ready
        while ready:
            event = ready.popleft()
            if event.kind == _EXITED:
                self.exit = event.exit
                self._consumed_event()
                self.wake()
            elif event.kind == _CLOSED:
                self.is_closed = True
                self.client.handle_process_closed(self, event.seq)
                self.wake()
            else:
                stream = self.streams.get(event.kind)
                if stream is None:
                    # A stream of a newer server, which has no reader here.
                    self.consumed(len(event.data))
                else:
                    stream.push(event.seq, event.data)

    # Readers.

    def consumed(self, size: int) -> None:
        """Notes that a chunk was read."""
        self._unacked_bytes += size
        self._consumed_event()
        if self.is_released and self.buffered < _LOW_ATTACHED_BYTES:
            self.is_released = False
            self.client.reattach(self)
        elif self.order.dropped_through or self._reads_on:
            self.fill_gap()

    def _consumed_event(self) -> None:
        self._unacked_events += 1
        if self._unacked_bytes >= _ACK_BYTES or self._unacked_events >= _ACK_EVENTS:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Acknowledges what was read, up to the first chunk that was not."""
        self._unacked_bytes = self._unacked_events = 0
        if self.server_owned or self.is_closed:
            return
        cursor = self.order.last - len(self.order.ready)
        for stream in self.streams.values():
            if stream.chunks:
                cursor = min(cursor, stream.chunks[0][0] - 1)
        if cursor > self._acked:
            self._acked = cursor
            self.client.acknowledge(self.id, cursor)

    @property
    def replay_after(self) -> int:
        """The event after which the server should replay on another connection."""
        return self.order.last

    async def wait(self, is_done: Callable[["ProcessEvents"], bool]) -> None:
        """Waits for the exit or the close.

        Raises:
            ExecServerError: The process failed before.
        """
        while not is_done(self):
            if self.failure is not None:
                raise self.failure
            waiter: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                with self.client.awaiting_event():
                    await waiter
            finally:
                self._waiters.discard(waiter)

    def fail(self, error: ExecServerError) -> bool:
        """Records that no more events will come. Returns whether that was not known before."""
        if self.failure is not None or self.is_closed:
            return False
        self.failure = error
        self.wake()
        return True

    def wake(self) -> None:
        """Wakes all waiters."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        for stream in self.streams.values():
            stream.wake()


def _is_large(chunks: List[Any]) -> bool:
    if len(chunks) >= _LARGE_PAGE_CHUNKS:
        return True
    return sum(len(chunk["chunk"]) * 3 // 4 for chunk in chunks) >= _LARGE_PAGE_BYTES


class Collector:
    """Gathers the output of a stream, of which the caller may have a part already."""

    def __init__(self, limit: Optional[int] = None, size: int = 0) -> None:
        self._parts: List[bytes] = []
        self._size = size
        self._limit = limit
        self.on_excess: Callable[[], None] = lambda: None
        self.exceeded = limit is not None and size > limit

    def __call__(self, data: bytes) -> None:
        if self.exceeded:
            return
        self._size += len(data)
        if self._limit is not None and self._size > self._limit:
            self.exceeded = True
            self._parts.append(data[: len(data) - (self._size - self._limit)])
            self.on_excess()
        else:
            self._parts.append(data)

    def value(self) -> bytes:
        """Returns what was gathered so far."""
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0] if self._parts else b""
