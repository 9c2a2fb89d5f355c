"""The client: one session on a server, over as many links as it takes.

Everything here runs in one event loop. Messages are handled in the turn in which they arrive. A
link that breaks is replaced: the client resumes the session, reads what it missed of every process,
and repeats the calls that may be repeated. See docs/design/0007-recovery.md of the project, whose
rules this client shares with the one in Rust.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict, deque
from contextlib import contextmanager
from typing import Any, Callable, Deque, Dict, Iterator, Optional, Protocol, Set, Tuple

from ._connector import Connector
from ._framing import Buffer, Json, ReceivedMessage, decode_message, encode_message
from ._link import Link, TransientConnectError
from ._process_events import ProcessEvents
from ._version import __version__
from .errors import (
    SESSION_ATTACHED,
    UNKNOWN_METHOD,
    CallInterruptedError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    ExecServerError,
    ProtocolError,
    RemoteError,
    SessionLostError,
    remote_error,
)

#: Limit of the response to `initialize`.
_HANDSHAKE_TIMEOUT = 10.0
#: Shortest time for which a lost connection is replaced, as in the stock client.
_MIN_RECOVERY_SECONDS = 45.0
_MAX_RECOVERY_SECONDS = 30 * 24 * 3600.0
#: Time from the start of one attempt to the next, and the attempts after which it is longer.
_RETRY_SECONDS = 0.1
_SLOW_RETRY_SECONDS = 1.0
_FAST_ATTEMPTS = 300
#: Silence after which the server is pinged, and silence after that which means that it is gone.
_PING_SECONDS = 15.0
_PONG_SECONDS = 20.0
#: Calls that wait for their response at once. A server accepts 4096.
_MAX_CALLS = 1024
#: Calls that end processes, and so must not wait behind others.
_MAX_URGENT_CALLS = 256
#: Remembered ids of closed tunnels and listeners, more than a session may have.
_MAX_CLOSED_TUNNELS = 2048
#: Remembered ids of finished processes, as many as a server retains.
_MAX_FINISHED = 8192
#: Unread output of a connection to a server without acknowledgements, above which nothing more is
#: read from it.
_MAX_BUFFERED_BYTES = 4 << 20
#: The same while something waits for a message that is behind the output.
_MAX_AWAITED_BUFFERED_BYTES = 256 << 20
#: Malformed messages after which another connection will not help.
_MAX_MALFORMED = 10
#: Time that closing spends on ending processes, and then on links that broke before.
_CLOSE_SECONDS = 5.0
_CLOSE_BROKEN_SECONDS = 1.0

_EXTENSIONS = ["binaryData", "lifecycle", "fileDetails", "acknowledge", "tunnels"]

#: Idempotent, so always repeated on the next connection.
_REPEATED = {"process/write", "process/closeStdin", "process/resize"}
#: Without effect, so repeated if the caller still waits.
_REPEATED_IF_AWAITED = {
    "environment/info",
    "environment/status",
    "process/read",
    "process/wait",
    "process/snapshot",
    "process/list",
    # Replayed events that are known are dropped.
    "process/attach",
    "history/list",
    "server/status",
    "fs/readFile",
    "fs/getMetadata",
    "fs/canonicalize",
    "fs/readDirectory",
    "fs/walk",
    "fs/search",
    "fs/find",
    "ports/list",
    # Repeating the request of an open tunnel or listener has no effect.
    "tunnel/open",
    "tunnel/listen",
}

Response = Tuple[Json, Optional[bytes]]


class _Call:
    """A request that has no response yet."""

    __slots__ = ("id", "method", "params", "data", "future", "sent", "on_orphaned", "sink", "start", "repeat")

    def __init__(
        self, number: int, method: str, params: Json, data: Optional[Buffer] = None
    ) -> None:
        self.id = number
        self.method = method
        self.params = params
        self.data = data
        self.future: "Optional[asyncio.Future[Response]]" = None
        self.sent = False
        self.repeat = False
        #: Undoes a call whose caller is gone.
        self.on_orphaned: Optional[Callable[[], None]] = None
        #: Takes the response instead of a future. Such calls end with their connection.
        self.sink: Optional[Callable[[Optional[Json], Optional[ExecServerError]], None]] = None
        #: The process that this call starts.
        self.start: Optional[ProcessEvents] = None

    def is_repeated(self) -> bool:
        """Returns whether the call is sent again on the next connection."""
        if self.sink is not None:
            return False
        if self.method in _REPEATED:
            return True
        awaited = self.future is not None and not self.future.done()
        return awaited and (self.repeat or self.method in _REPEATED_IF_AWAITED)

    def fail(self, error: ExecServerError) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)
        elif self.sink is not None:
            self.sink(None, error)


class Watch(Protocol):
    """A watch of files, which begins again on every connection."""

    def handle_changed(self, params: Json) -> None:
        """Handles `fs/changed`."""

    def handle_resume(self) -> None:
        """Handles a new connection of the same session."""

    def handle_end(self, error: ExecServerError) -> None:
        """Handles the end of the session."""


class Tunnel(Protocol):
    """A tunnel, which goes on with every connection of the session."""

    def handle_data(self, params: Json, data: Optional[bytes]) -> None:
        """Handles `tunnel/data`."""

    def handle_shutdown(self, params: Json) -> None:
        """Handles `tunnel/shutdown`."""

    def handle_acknowledge(self, params: Json) -> None:
        """Handles `tunnel/acknowledge`."""

    def handle_room(self) -> None:
        """Handles that other tunnels use less of what all share."""

    def handle_close(self, params: Json) -> None:
        """Handles `tunnel/close`."""

    def handle_resume(self) -> None:
        """Handles a new connection of the same session."""

    def handle_end(self, error: ExecServerError) -> None:
        """Handles the end of the session."""


class TunnelListener(Protocol):
    """A port in the environment whose connections come here."""

    def handle_incoming(self, params: Json) -> None:
        """Handles `tunnel/incoming`."""

    def handle_close(self, params: Json) -> None:
        """Handles `tunnel/close`."""

    def handle_end(self, error: ExecServerError) -> None:
        """Handles the end of the session."""


class Forward(Protocol):
    """A port of this machine whose connections go into the environment."""

    def handle_end(self) -> None:
        """Handles the close of the client."""


class Client:
    """A session on a server."""

    def __init__(
        self,
        connector: Connector,
        client_name: Optional[str] = None,
        reconnect_timeout: Optional[float] = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connector = connector
        self._client_name = client_name or f"exec-server-python/{__version__}"
        self._reconnect_timeout = reconnect_timeout
        self._link: Optional[Link] = None
        #: Links that broke last, whose transports may not be closed yet.
        self._broken_links: "Deque[Link]" = deque(maxlen=8)
        self._state = "new"
        self._calls: Dict[int, _Call] = {}
        self._next_call = 1
        self._slots = asyncio.Semaphore(_MAX_CALLS)
        self._urgent_slots = asyncio.Semaphore(_MAX_URGENT_CALLS)
        self._opening = asyncio.Lock()
        self._closing: "Optional[asyncio.Task[None]]" = None
        self._guard: "Optional[asyncio.Task[None]]" = None
        self._recovery: "Optional[asyncio.Task[None]]" = None
        self._alive_timer: Optional[asyncio.TimerHandle] = None
        self._ping_sent: Optional[float] = None
        #: Bytes that were queued on the link, and those of them that were not sent, at the last
        #: check of the keepalive.
        self._unsent = (0, 0)
        self._lost_since: Optional[float] = None
        self._resumed = asyncio.Event()
        self._raw = False
        self._session_ttl: Optional[float] = None
        self._buffered = 0
        self._awaited_events = 0
        self._malformed = 0
        self._end = asyncio.Event()
        self._finished: "OrderedDict[str, None]" = OrderedDict()
        #: Closes of processes whose acknowledgement may not have arrived, with the last call sent
        #: before.
        self._final_acks: "OrderedDict[str, Tuple[int, int]]" = OrderedDict()
        self._pending_starts: "Dict[ProcessEvents, _Call]" = {}
        self.processes: Dict[str, ProcessEvents] = {}
        self.session_id: Optional[str] = None
        self.extensions: Set[str] = set()
        self.acknowledges = False
        self.info: Json = {}
        self.server: Json = {}
        #: Connections so far.
        self.connections = 0
        self._next_handle = 0
        self._nonce = uuid.uuid4().hex[:12]
        #: Open watches by id.
        self.watches: Dict[str, Watch] = {}
        #: Tunnels and listeners by id, and what all tunnels have sent without acknowledgement.
        self.tunnels: Dict[str, Tunnel] = {}
        self.listeners: Dict[str, TunnelListener] = {}
        self.tunnel_bytes = 0
        #: Tunnels and listeners whose close may not have arrived, with the last call sent before.
        self._closed_tunnels: "OrderedDict[str, int]" = OrderedDict()
        #: Ports of this machine, which are closed with the client.
        self.forwards: Set[Forward] = set()

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed, or being closed."""
        return self._closing is not None

    # Opening and closing.

    async def open(self) -> None:
        """Opens the first connection, or a new session after one was lost."""
        async with self._opening:
            if self._state in ("connected", "reconnecting"):
                return
            self._check_usable()
            try:
                link, result = await self._handshake(None)
            except TransientConnectError as error:
                # Only recovery makes another attempt.
                raise ConnectError(str(error)) from error.__cause__
            if self._closing is not None:
                link.close()
                raise _closed()
            self._accept(link, result)
            if self._guard is None:
                self._guard = self._loop.create_task(self._watch_loop())

    async def close(self) -> None:
        """Ends the processes of the session and the connection."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._end_processes()
        finally:
            self._shut(_closed())
            for forward in list(self.forwards):
                forward.handle_end()
            link, self._link = self._link, None
            if link is not None:
                link.on_close = lambda reason: None
                link.on_message = lambda message: None
                link.close()
                await link.wait_closed()
            broken = [link.wait_closed() for link in self._broken_links]
            await _bounded(asyncio.gather(*broken), _CLOSE_BROKEN_SECONDS)
            if self._guard is not None and self._guard is not asyncio.current_task():
                self._end.set()

    async def _end_processes(self) -> None:
        """Terminates what belongs to the session, within a few seconds."""
        deadline = self._loop.time() + _CLOSE_SECONDS
        while self._state in ("connected", "reconnecting"):
            live = [process for process in self.processes.values() if not process.server_owned]
            left = deadline - self._loop.time()
            if not live or left <= 0:
                return
            if self._state == "reconnecting":
                self._resumed.clear()
                await _bounded(self._resumed.wait(), left)
                continue
            futures = []
            for process in live:
                params = {"processId": process.id, "mode": {"type": "force"}}
                call = self._register("process/terminate", params)
                call.future = self._loop.create_future()
                futures.append(call.future)
                self._send_call(call)
            done, _ = await asyncio.wait(futures, timeout=left)
            if all(
                not future.cancelled() and not isinstance(future.exception(), ConnectionLostError)
                for future in done
            ):
                return

    async def _watch_loop(self) -> None:
        """Closes the client in order if its event loop ends before it is closed."""
        try:
            await self._end.wait()
        except asyncio.CancelledError:
            if self._closing is None:
                self._closing = self._loop.create_task(self._close())
            await asyncio.wait({self._closing}, timeout=_CLOSE_SECONDS + 5)
            raise

    def _shut(self, error: ExecServerError) -> None:
        """Fails everything: the session is over."""
        self._state = "closed" if isinstance(error, ClosedError) else "lost"
        if self._recovery is not None and self._recovery is not asyncio.current_task():
            self._recovery.cancel()
        self._recovery = None
        self._resumed.set()
        if self._alive_timer is not None:
            self._alive_timer.cancel()
        processes, self.processes = self.processes, {}
        for process in processes.values():
            process.fail(error)
        calls, self._calls = self._calls, {}
        for call in (*calls.values(), *self._pending_starts.values()):
            call.fail(error)
        self._pending_starts.clear()
        self._final_acks.clear()
        self._closed_tunnels.clear()
        self.session_id = None
        for watch in list(self.watches.values()):
            watch.handle_end(error)
        for tunnel in list(self.tunnels.values()):
            tunnel.handle_end(error)
        for listener in list(self.listeners.values()):
            listener.handle_end(error)

    def _check_usable(self) -> None:
        if self._closing is not None or self._state == "closed":
            raise _closed()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            text = "the environment belongs to another event loop: connect one in this loop"
            raise ClosedError(text)

    # Calls.

    async def request(
        self,
        method: str,
        params: Json,
        data: Optional[Buffer] = None,
        on_orphaned: Optional[Callable[[], None]] = None,
        repeat: bool = False,
        urgent: bool = False,
    ) -> Response:
        """Sends a request and waits for its response.

        ``on_orphaned`` undoes the call if it succeeds after its caller was cancelled. ``repeat``
        says that this call is idempotent, although others of its method are not. An ``urgent`` call
        does not wait for others.
        """
        self._check_usable()
        async with self._urgent_slots if urgent else self._slots:
            if self._state not in ("connected", "reconnecting"):
                await self.open()
            call = self._register(method, params, data)
            call.on_orphaned = on_orphaned
            call.repeat = repeat
            call.future = self._loop.create_future()
            if self._state == "connected":
                self._send_call(call)
            return await call.future

    def _register(self, method: str, params: Json, data: Optional[Buffer] = None) -> _Call:
        call = _Call(self._next_call, method, params, data)
        self._next_call += 1
        self._calls[call.id] = call
        self._update_reading()
        return call

    def _send_call(self, call: _Call) -> None:
        call.sent = True
        message = {"id": call.id, "method": call.method, "params": call.params}
        self._send(message, call.data)

    def _send(self, message: Json, data: Optional[Buffer] = None) -> None:
        if self._link is not None:
            self._link.send(*encode_message(message, data, self._raw))

    def notify(self, method: str, params: Json, data: Optional[Buffer] = None) -> None:
        """Sends a notification, if there is a connection."""
        self._send({"method": method, "params": params}, data)

    def send_unanswered(self, method: str, params: Json) -> None:
        """Sends a request whose response does not matter, if there is a connection."""
        self.send_with_sink(method, params, lambda result, error: None)

    def send_with_sink(
        self,
        method: str,
        params: Json,
        sink: Callable[[Optional[Json], Optional[ExecServerError]], None],
    ) -> None:
        """Sends a request, if there is a connection, and passes the response to a function."""
        if self._state == "connected":
            call = self._register(method, params)
            call.sink = sink
            self._send_call(call)

    async def wait_connected(self) -> None:
        """Waits while the connection is being replaced."""
        while self._state == "reconnecting":
            await self._resumed.wait()

    def new_handle_id(self) -> str:
        """Returns an id for an open file, a watch or another thing of the connection."""
        self._next_handle += 1
        return f"h{self._next_handle}"

    def new_tunnel_id(self) -> str:
        """Returns an id for a tunnel or a listener, which the session may keep."""
        self._next_handle += 1
        return f"py-{self._nonce}-{self._next_handle}"

    def close_tunnel(self, tunnel_id: str, reason: Optional[str] = None) -> None:
        """Closes a tunnel or a listener, also if there is no connection now."""
        self._closed_tunnels[tunnel_id] = self._next_call
        self._closed_tunnels.move_to_end(tunnel_id)
        while len(self._closed_tunnels) > _MAX_CLOSED_TUNNELS:
            self._closed_tunnels.popitem(last=False)
        params = {"tunnelId": tunnel_id}
        if reason is not None:
            params["reason"] = reason
        self.notify("tunnel/close", params)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls a function in the event loop, from any thread, unless the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            pass

    async def drain(self) -> None:
        """Waits until the connection takes more."""
        if self._link is not None:
            await self._link.drain()

    # Processes.

    def new_process(self, process_id: Optional[str], server_owned: bool) -> ProcessEvents:
        """Makes the state of a process that is about to be started or attached."""
        return ProcessEvents(self, process_id or f"py-{uuid.uuid4().hex}", server_owned)

    async def start_process(self, events: ProcessEvents, params: Json) -> None:
        """Sends `process/start` and waits for its response.

        After a disconnect the server is asked whether it knows the process. A start is never sent
        twice.
        """
        self._check_usable()
        async with self._slots:
            if self._state not in ("connected", "reconnecting"):
                await self.open()
            if events.id in self.processes:
                text = f"process id `{events.id}` is in use by this environment"
                raise remote_error(-32600, text, "process/start")
            call = self._register("process/start", params)
            call.start = events
            call.future = self._loop.create_future()
            self.processes[events.id] = events
            if self._state == "connected":
                self._send_call(call)
            await call.future

    async def attach_process(self, events: ProcessEvents) -> Json:
        """Sends `process/attach` and waits for its response."""
        self._check_usable()
        if self._state not in ("connected", "reconnecting"):
            await self.open()
        if events.id in self.processes:
            text = f"this environment follows process `{events.id}` already"
            raise remote_error(-32600, text, "process/attach")
        self.processes[events.id] = events
        events.is_attaching = True
        try:
            result, _ = await self.request("process/attach", _attach_params(events))
        except BaseException:
            self._forget(events)
            raise
        finally:
            events.is_attaching = False
        return result

    def _forget(self, events: ProcessEvents) -> None:
        if self.processes.get(events.id) is events:
            del self.processes[events.id]

    def detach_process(self, events: ProcessEvents) -> None:
        """Stops following a process of the server."""
        if self.processes.get(events.id) is events:
            self._forget(events)
            self.send_unanswered("process/release", {"processId": events.id})

    def release(self, events: ProcessEvents) -> None:
        """Stops the events of a detached process whose reader lags."""
        self.send_unanswered("process/release", {"processId": events.id})

    def reattach(self, events: ProcessEvents) -> None:
        """Follows a detached process again."""
        if self.processes.get(events.id) is not events or self._state != "connected":
            return

        def handle(result: Optional[Json], error: Optional[ExecServerError]) -> None:
            if error is not None and not isinstance(error, (ConnectionLostError, ClosedError)):
                self.fail_process(events, error)

        self.send_with_sink("process/attach", _attach_params(events), handle)

    def acknowledge(self, process_id: str, seq: int) -> None:
        """Confirms events, if the server wants that."""
        if self.acknowledges and self._state == "connected":
            self.notify("process/acknowledge", {"processId": process_id, "seq": seq})

    def read_output(self, events: ProcessEvents, after: int, limit: Optional[int]) -> None:
        """Reads missed output of a process."""
        params = {"processId": events.id, "afterSeq": after, "maxBytes": limit, "waitMs": 0}
        self.send_with_sink(
            "process/read", params, lambda page, error: self._handle_page(events, page, error)
        )

    def _handle_page(
        self, events: ProcessEvents, page: Optional[Json], error: Optional[ExecServerError]
    ) -> None:
        if page is not None:
            events.handle_page(page)
        elif isinstance(error, (ConnectionLostError, ClosedError)):
            events.handle_read_interrupted()
        else:
            text = f"process {events.id}: its output cannot be read: {error}"
            self.fail_process(events, ExecServerError(text))

    def fail_process(self, events: ProcessEvents, error: ExecServerError) -> None:
        """Gives up one process, because its events are unusable."""
        if not events.fail(error):
            return
        if events.server_owned:
            self.detach_process(events)
        else:
            self._terminate(events)
            # Lets the server forget it.
            self.acknowledge(events.id, 2**63)
            self._finish(events)

    def _terminate(self, events: ProcessEvents) -> None:
        params = {"processId": events.id, "mode": {"type": "force"}}
        self.send_unanswered("process/terminate", params)

    def handle_process_closed(self, events: ProcessEvents, seq: int) -> None:
        """Handles the last event of a process: all its output is in memory."""
        if not events.server_owned and self.acknowledges:
            self.acknowledge(events.id, seq)
            self._final_acks[events.id] = (seq, self._next_call)
            while len(self._final_acks) > _MAX_FINISHED:
                self._final_acks.popitem(last=False)
        self._finish(events)

    def _finish(self, events: ProcessEvents) -> None:
        self._forget(events)
        self._finished[events.id] = None
        while len(self._finished) > _MAX_FINISHED:
            self._finished.popitem(last=False)

    def handle_buffered(self, change: int) -> None:
        """Counts unread output. A server without acknowledgements is slowed down by not reading."""
        self._buffered += change
        self._update_reading()

    @contextmanager
    def awaiting_event(self) -> Iterator[None]:
        """Notes that something waits for the next event of a process."""
        self._awaited_events += 1
        self._update_reading()
        try:
            yield
        finally:
            self._awaited_events -= 1
            self._update_reading()

    def _update_reading(self) -> None:
        link = self._link
        if link is None or self.acknowledges:
            return
        is_awaited = bool(self._calls) or self._awaited_events > 0
        limit = _MAX_AWAITED_BUFFERED_BYTES if is_awaited else _MAX_BUFFERED_BYTES
        if self._buffered >= limit:
            link.pause()
        elif link.is_paused and (is_awaited or self._buffered < limit // 2):
            link.resume()

    # Messages.

    def _handle_message(self, link: Link, frame: ReceivedMessage) -> None:
        try:
            message, data = decode_message(frame)
            method = message.get("method")
            if method is None:
                self._handle_response(message, data)
            elif "id" in message:
                error = {"code": UNKNOWN_METHOD, "message": f"unknown method `{method}`"}
                self._send({"id": message["id"], "error": error})
            else:
                self._handle_notification(method, message.get("params") or {}, data)
        except ProtocolError as error:
            self._handle_malformed(link, str(error))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            self._handle_malformed(link, f"{type(error).__name__}: {error}")

    def _handle_malformed(self, link: Link, what: str) -> None:
        """Drops the connection, and the session if that keeps happening."""
        reason = f"the server sent a malformed message: {what}"
        self._malformed += 1
        link.abort(reason)
        if self._malformed > _MAX_MALFORMED and self._state in ("connected", "reconnecting"):
            self._link = None
            self._shut(SessionLostError(reason))

    def _handle_notification(self, method: str, params: Json, data: Optional[bytes]) -> None:
        if method == "process/output":
            process = self.processes.get(params["processId"])
            if process is not None:
                process.handle_output(params, data)
        elif method == "process/exited":
            process = self.processes.get(params["processId"])
            if process is not None:
                process.handle_exited(params)
        elif method == "process/closed":
            process = self.processes.get(params["processId"])
            if process is not None:
                process.handle_closed(params)
        elif method == "process/started":
            process = self.processes.get(params["processId"])
            if process is not None:
                process.os_pid = params.get("osPid")
                process.started_at_ms = params.get("startedAtMs")
        elif method == "fs/changed":
            watch = self.watches.get(params["watchId"])
            if watch is not None:
                watch.handle_changed(params)
        elif method.startswith("tunnel/"):
            self._handle_tunnel(method, params, data)
        self._lost_since = None

    def _handle_tunnel(self, method: str, params: Json, data: Optional[bytes]) -> None:
        tunnel_id = params["tunnelId"]
        if method == "tunnel/incoming":
            listener = self.listeners.get(params["listenId"])
            if listener is not None and tunnel_id not in self._closed_tunnels:
                listener.handle_incoming(params)
            else:
                self.close_tunnel(tunnel_id)
            return
        tunnel = self.tunnels.get(tunnel_id)
        if method == "tunnel/close":
            listener = self.listeners.get(tunnel_id)
            if tunnel is not None:
                tunnel.handle_close(params)
            elif listener is not None:
                listener.handle_close(params)
        elif tunnel is None:
            self.close_tunnel(tunnel_id)
        elif method == "tunnel/data":
            tunnel.handle_data(params, data)
        elif method == "tunnel/shutdown":
            tunnel.handle_shutdown(params)
        elif method == "tunnel/acknowledge":
            tunnel.handle_acknowledge(params)

    def _handle_response(self, message: Json, data: Optional[bytes]) -> None:
        call = self._calls.pop(message.get("id", -1), None)
        if call is None:
            return
        if not self._calls:
            self._update_reading()
        self._lost_since = None
        while self._final_acks:
            # Messages arrive in order, so acknowledgements before this call have arrived.
            first = next(iter(self._final_acks))
            if self._final_acks[first][1] > call.id:
                break
            del self._final_acks[first]
        while self._closed_tunnels:
            closed = next(iter(self._closed_tunnels))
            if self._closed_tunnels[closed] > call.id:
                break
            del self._closed_tunnels[closed]
        error: Optional[ExecServerError] = None
        result: Optional[Json] = None
        if "result" in message:
            result = message["result"]
            if result is None:
                result = {}
        else:
            detail = message["error"]
            error = remote_error(int(detail["code"]), str(detail["message"]), call.method)
        if call.sink is not None:
            call.sink(result, error)
        elif call.start is not None:
            self._handle_start(call, call.start, error)
        elif call.future is None or call.future.done():
            if error is None and call.on_orphaned is not None:
                call.on_orphaned()
        elif error is not None:
            call.future.set_exception(error)
        else:
            assert result is not None
            call.future.set_result((result, data))

    def _handle_start(
        self, call: _Call, events: ProcessEvents, error: Optional[ExecServerError]
    ) -> None:
        future = call.future
        assert future is not None
        if error is not None:
            self._forget(events)
            if not future.done():
                future.set_exception(error)
        elif not future.done():
            future.set_result(({}, None))
        else:
            # The caller is gone.
            self._terminate(events)
            for stream in events.streams.values():
                stream.divert(lambda data: None)

    # Connections.

    async def _handshake(self, resume: Optional[str]) -> Tuple[Link, Json]:
        """Opens a link, and opens or resumes a session on it."""
        link = await self._connector.open()
        try:
            response: "asyncio.Future[Json]" = self._loop.create_future()

            def handle(frame: ReceivedMessage) -> None:
                if frame[:1] != b"\x01" and not response.done():
                    try:
                        message, _ = decode_message(frame)
                    except ProtocolError as error:
                        response.set_exception(error)
                        return
                    if message.get("id") == 0 and "method" not in message:
                        response.set_result(message)
                        return
                self._handle_message(link, frame)

            def handle_close(reason: str) -> None:
                if not response.done():
                    response.set_exception(link.end_error(reason))

            link.on_message = handle
            link.on_close = handle_close
            if link.end_reason is not None:
                # It broke before the callbacks were set.
                raise link.end_error(link.end_reason)
            extensions = [
                name for name in _EXTENSIONS if link.carries_raw_data or name != "binaryData"
            ]
            params: Json = {"clientName": self._client_name, "extensions": extensions}
            if resume is not None:
                params["resumeSessionId"] = resume
            request = {"id": 0, "method": "initialize", "params": params}
            link.send(*encode_message(request, None, False))
            try:
                message = await asyncio.wait_for(response, _HANDSHAKE_TIMEOUT)
            except asyncio.TimeoutError:
                text = f"the server did not answer `initialize` in {_HANDSHAKE_TIMEOUT:.0f} s"
                raise TransientConnectError(text) from None
            if "error" in message:
                error = message["error"]
                raise remote_error(int(error["code"]), str(error["message"]), "initialize")
            result = message["result"]
            _check_session(result)
            if resume is not None and result.get("sessionId") != resume:
                raise ProtocolError("the server resumed another session")
            # No turn of the loop between the response and its effect.
            self._raw = "binaryData" in (result.get("extensions") or ())
            link.send(*encode_message({"method": "initialized", "params": {}}, None, False))
            return link, result
        except BaseException as error:
            link.on_close = lambda reason: None
            link.abort("the handshake failed")
            self._broken_links.append(link)
            if isinstance(error, (KeyError, TypeError, ValueError)):
                raise ProtocolError(f"malformed response to `initialize`: {error!r}") from error
            raise

    def _accept(self, link: Link, result: Json) -> None:
        """Uses a link from now on."""
        self._link = link
        self._state = "connected"
        self.connections += 1
        self.session_id = str(result["sessionId"])
        self.extensions = set(result.get("extensions") or ())
        self.acknowledges = "acknowledge" in self.extensions
        self._raw = "binaryData" in self.extensions and link.carries_raw_data
        self.server = result.get("server") or {}
        self.info = result.get("environmentInfo") or self.info
        ttl = result.get("sessionTtlMs")
        self._session_ttl = None if ttl is None else ttl / 1000
        link.on_message = lambda frame: self._handle_message(link, frame)
        link.on_close = lambda reason: self._handle_link_lost(link, reason)
        self._ping_sent = None
        self._unsent = (0, 0)
        self._schedule_check()
        if link.end_reason is not None:
            # It broke right behind the response.
            self._loop.call_soon(self._handle_link_lost, link, link.end_reason)

    def _handle_link_lost(self, link: Link, reason: str) -> None:
        if self._link is not link or self._state != "connected":
            return
        self._link = None
        self._broken_links.append(link)
        self._state = "reconnecting"
        self._resumed.clear()
        if self._lost_since is None:
            self._lost_since = self._loop.time()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.sent or call.is_repeated():
                self._calls[call.id] = call
            elif call.start is not None:
                self._pending_starts[call.start] = call
            else:
                text = f"`{call.method}` was interrupted: {reason}"
                call.fail(CallInterruptedError(text))
        self._recovery = self._loop.create_task(self._recover(reason))

    async def _recover(self, cause: str) -> None:
        """Opens links until one resumes the session, or it is lost."""
        try:
            await self._reconnect(cause)
        except asyncio.CancelledError:
            if self._state == "reconnecting":
                self._shut(SessionLostError(f"{cause}; the event loop ended"))
            raise
        except Exception as error:
            # Without this task the calls would wait for ever.
            lost = SessionLostError(f"{cause}; the session was not resumed: {error!r}")
            lost.__cause__ = error
            link, self._link = self._link, None
            self._shut(lost)
            if link is not None:
                link.abort("the session was not resumed")

    async def _reconnect(self, cause: str) -> None:
        window = max(self._session_ttl or 0.0, _MIN_RECOVERY_SECONDS)
        window = min(window, _MAX_RECOVERY_SECONDS)
        if self._reconnect_timeout is not None:
            window = min(window, self._reconnect_timeout)
        since = self._loop.time() if self._lost_since is None else self._lost_since
        deadline = since + window
        attempts = 0
        while True:
            started = self._loop.time()
            try:
                left = max(deadline - started, 0.001)
                link, result = await asyncio.wait_for(self._handshake(self.session_id), left)
                break
            except (TransientConnectError, asyncio.TimeoutError, RemoteError) as error:
                is_final = isinstance(error, RemoteError) and error.code != SESSION_ATTACHED
                now = self._loop.time()
                if is_final or now >= deadline:
                    limit = "" if is_final else f" within {window:g} s"
                    text = f"{cause}; the session was not resumed{limit}: {error}"
                    self._shut(SessionLostError(text))
                    return
            except (ExecServerError, OSError) as error:
                text = f"{cause}; the session was not resumed: {error}"
                self._shut(SessionLostError(text))
                return
            attempts += 1
            pause = _RETRY_SECONDS if attempts < _FAST_ATTEMPTS else _SLOW_RETRY_SECONDS
            await asyncio.sleep(max(0.0, min(started + pause, deadline) - self._loop.time()))
        self._recovery = None
        self._accept(link, result)
        self._resume()

    def _resume(self) -> None:
        """Asks for what was missed, and repeats calls, on a connection that resumed the session."""
        for process_id, (seq, _) in list(self._final_acks.items()):
            if process_id not in self.processes:
                self.acknowledge(process_id, seq)
                self._final_acks[process_id] = (seq, self._next_call)
        starts, self._pending_starts = self._pending_starts, {}
        queued, self._calls = self._calls, {}
        # Unsent starts are in the table already, but the server does not know them.
        unsent = {call.start for call in queued.values() if call.start is not None}
        for events in list(self.processes.values()):
            start = starts.get(events)
            if start is not None:
                self._probe_start(start, events)
            elif events in unsent or events.is_attaching or events.is_released:
                # The call attaches it, or its reader does, once it has caught up.
                pass
            elif events.server_owned:
                self.reattach(events)
            else:
                events.begin_resume()
        for watch in list(self.watches.values()):
            watch.handle_resume()
        for tunnel in list(self.tunnels.values()):
            tunnel.handle_resume()
        for tunnel_id in list(self._closed_tunnels):
            # The connection may have taken the close with it. Unknown ids are ignored.
            self.close_tunnel(tunnel_id)
        for call in queued.values():
            if not call.sent and call.future is not None and call.future.cancelled():
                # The server has never seen it, and need not.
                if call.start is not None:
                    self._forget(call.start)
                continue
            self._calls[call.id] = call
            self._send_call(call)
        self._resumed.set()

    def _probe_start(self, start: _Call, events: ProcessEvents) -> None:
        """Finds out whether the server knows a process whose start was not answered."""
        error = CallInterruptedError(
            "`process/start` was interrupted: the command may have run briefly"
        )
        if events.id in self._finished and not events.server_owned:
            self._forget(events)
            start.fail(error)
            return
        method, params = "process/list", {}
        if not events.server_owned:
            method = "process/read"
            params = {"processId": events.id, "afterSeq": 0, "maxBytes": None, "waitMs": 0}

        def handle(result: Optional[Json], failure: Optional[ExecServerError]) -> None:
            if isinstance(failure, (ConnectionLostError, ClosedError)):
                if isinstance(failure, CallInterruptedError):
                    self._pending_starts[events] = start
                else:
                    start.fail(failure)
            elif result is None or not self._is_started(events, start, result):
                self._terminate(events)
                self._forget(events)
                start.fail(error)
            else:
                self._handle_start(start, events, None)
                if events.server_owned:
                    self.reattach(events)
                else:
                    events.begin_resume()

        self.send_with_sink(method, params, handle)

    @staticmethod
    def _is_started(events: ProcessEvents, start: _Call, result: Json) -> bool:
        """Returns whether the response to a probe proves that the start succeeded."""
        if not events.server_owned:
            return True
        return any(
            process["processId"] == events.id
            and process["detached"]
            and process["argv"] == start.params["argv"]
            and process["running"]
            for process in result["processes"]
        )

    # Keepalive.

    def _schedule_check(self) -> None:
        if self._alive_timer is not None:
            self._alive_timer.cancel()
        self._alive_timer = self._loop.call_later(_PING_SECONDS, self._check_alive)

    def _check_alive(self) -> None:
        """Pings a silent server, and ends the connection to one that stays silent."""
        link = self._link
        if link is None or self._state != "connected":
            return
        now = self._loop.time()
        pinged = self._ping_sent
        # A long message may be on its way, to which the response comes later.
        before, self._unsent = self._unsent, (link.queued_bytes, link.unsent_bytes)
        is_sending = before[1] > 0 and before[0] - before[1] < self._unsent[0] - self._unsent[1]
        if link.is_paused or is_sending or link.last_received > (pinged or 0.0):
            self._ping_sent = pinged = None
        if pinged is None:
            if now - link.last_received >= _PING_SECONDS and not link.is_paused:
                self._ping_sent = now
                if link.has_pings:
                    link.ping()
                else:
                    self.send_unanswered("environment/status", {})
        elif now - pinged >= _PONG_SECONDS:
            link.abort("the server does not answer")
            return
        self._schedule_check()


def _attach_params(events: ProcessEvents) -> Json:
    params: Dict[str, Any] = {"processId": events.id, "afterSeq": events.replay_after}
    if events.started_at_ms is not None:
        params["startedAtMs"] = events.started_at_ms
    return params


#: Members of the response to `initialize` that may be missing.
_SESSION_MEMBERS: Dict[str, Tuple[type, ...]] = {
    "extensions": (list,),
    "server": (dict,),
    "environmentInfo": (dict,),
    "sessionTtlMs": (int, float),
}


def _check_session(result: Any) -> None:
    if not isinstance(result, dict) or not isinstance(result.get("sessionId"), str):
        raise ProtocolError("the response to `initialize` has no session id")
    for name, types in _SESSION_MEMBERS.items():
        if result.get(name) is not None and not isinstance(result[name], types):
            raise ProtocolError(f"the response to `initialize` has an invalid `{name}`")


def _closed() -> ClosedError:
    return ClosedError("the environment is closed")


async def _bounded(waiting: Any, seconds: float) -> None:
    """Waits for something, but not for long."""
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
