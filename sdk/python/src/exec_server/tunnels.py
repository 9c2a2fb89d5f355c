"""Tunnels: TCP streams between this program and the network of an environment, for asyncio.

Each direction of a tunnel is a sequence of numbered events, which the sender keeps until they are
acknowledged. So a tunnel survives a broken connection without the loss or repetition of a byte.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from types import TracebackType
from typing import Deque, List, NamedTuple, Optional, Set, Tuple, Type

from ._client import Client
from ._framing import Buffer, Json, decode_base64
from .errors import ConnectionLostError, ExecServerError, TunnelClosedError

#: Largest piece of data.
_CHUNK_BYTES = 64 << 10
#: What an event counts beside its bytes.
_EVENT_BYTES = 128
#: Unacknowledged events of a tunnel, and of all tunnels of the session.
_WINDOW_BYTES = 1 << 20
_ALL_WINDOWS_BYTES = 64 << 20
#: What a tunnel may send although all tunnels together are full.
_MIN_WINDOW_BYTES = 64 << 10
#: Delivered bytes after which an acknowledgement is due, and after which it is once everything that
#: has arrived is delivered.
_ACK_BYTES = 256 << 10
_ACK_IDLE_BYTES = 32 << 10
#: Time that closing waits for the other end to take what was written.
_LINGER_SECONDS = 5.0
#: Accepted connections that wait for :meth:`AsyncListener.accept`.
_MAX_INCOMING = 1024


class _SentEvent(NamedTuple):
    """An event that the other end has not acknowledged. No data means the end."""

    seq: int
    data: Optional[bytes]

    @property
    def cost(self) -> int:
        return len(self.data or b"") + _EVENT_BYTES


class AsyncTunnel:
    """A TCP stream into the environment. Use :meth:`AsyncEnvironment.open_tunnel`.

    Iterating over it yields data as it arrives. Unread data makes the other end wait.
    """

    def __init__(self, client: Client, tunnel_id: str) -> None:
        self._client = client
        self._unacked: Deque[_SentEvent] = deque()
        self._unacked_bytes = 0
        self._sent = 0
        self._shutdown_sent = False
        self._received = 0
        self._delivered = 0
        self._acked = 0
        self._since_ack = 0
        self._buffer: Deque[Tuple[int, bytes]] = deque()
        self._lookahead = b""
        self._eof_seq: Optional[int] = None
        self._eof_delivered = False
        self._is_dropped = False
        self._ended = False
        self._failure: Optional[ExecServerError] = None
        self._waiters: "Set[asyncio.Future[None]]" = set()
        self._write_lock = asyncio.Lock()
        self._is_open = False
        #: The id of the tunnel.
        self.id = tunnel_id

    async def __aenter__(self) -> "AsyncTunnel":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abort()

    def __aiter__(self) -> "AsyncTunnel":
        return self

    async def __anext__(self) -> bytes:
        data = await self.read(1 << 20)
        if not data:
            raise StopAsyncIteration
        return data

    # Reading.

    async def read(self, size: int = 1 << 16) -> bytes:
        """Returns what is there, at most `size` bytes, and `b""` at the end.

        Raises:
            TunnelClosedError: The connection in the environment broke.
            SessionLostError: The connection to the server broke and was not resumed.
        """
        if size <= 0:
            raise ValueError("size must be positive")
        while True:
            if self._lookahead:
                data, self._lookahead = self._lookahead[:size], self._lookahead[size:]
                return data
            if self._buffer:
                seq, self._lookahead = self._buffer.popleft()
                self._deliver(seq, len(self._lookahead))
                continue
            if self._eof_delivered:
                return b""
            self._check()
            if self._ended:
                return b""
            await self._wait()

    async def read_all(self) -> bytes:
        """Returns everything up to the end."""
        parts: List[bytes] = []
        try:
            async for data in self:
                parts.append(data)
        except BaseException:
            # For the next reader.
            self._lookahead = b"".join(parts) + self._lookahead
            raise
        return b"".join(parts)

    def _deliver(self, seq: int, size: int) -> None:
        """Notes that an event has reached its reader."""
        self._delivered = seq
        self._since_ack += size + _EVENT_BYTES
        idle = not self._buffer and self._since_ack >= _ACK_IDLE_BYTES
        if self._eof_seq == seq + 1 and not self._buffer:
            self._delivered = self._eof_seq
            self._eof_delivered = idle = True
        if idle or self._since_ack >= _ACK_BYTES:
            self._acknowledge()

    def _acknowledge(self) -> None:
        self._since_ack = 0
        self._acked = self._delivered
        self._client.notify("tunnel/acknowledge", {"tunnelId": self.id, "seq": self._delivered})
        self._end_if_done()

    # Writing.

    async def write(self, data: Buffer) -> None:
        """Writes bytes. Waits while the other end has a mebibyte that it did not take.

        Raises:
            TunnelClosedError: The connection in the environment broke.
            SessionLostError: The connection to the server broke and was not resumed.
        """
        view = memoryview(data).cast("B")
        async with self._write_lock:
            for start in range(0, len(view), _CHUNK_BYTES):
                piece = bytes(view[start : start + _CHUNK_BYTES])
                while not self._has_room(len(piece)):
                    self._check_writable()
                    await self._wait()
                self._check_writable()
                self._send(piece)
            await self._client.drain()

    def _has_room(self, size: int) -> bool:
        needed = self._unacked_bytes + size + _EVENT_BYTES
        if self._client.tunnel_bytes + size > _ALL_WINDOWS_BYTES:
            return needed <= _MIN_WINDOW_BYTES + _EVENT_BYTES
        return needed <= _WINDOW_BYTES

    def _check_writable(self) -> None:
        self._check()
        if self._shutdown_sent or self._is_dropped or self._ended:
            raise TunnelClosedError("the tunnel is closed for writing")

    async def write_eof(self) -> None:
        """Ends this direction; the other one goes on."""
        async with self._write_lock:
            if not self._shutdown_sent and not self._ended and self._failure is None:
                self._shutdown_sent = True
                self._send(None)

    def _send(self, data: Optional[bytes]) -> None:
        self._sent += 1
        event = _SentEvent(self._sent, data)
        self._unacked.append(event)
        self._unacked_bytes += event.cost
        self._client.tunnel_bytes += event.cost
        self._transmit(event)

    def _transmit(self, event: _SentEvent) -> None:
        params = {"tunnelId": self.id, "seq": event.seq}
        if event.data is None:
            self._client.notify("tunnel/shutdown", params)
        else:
            self._client.notify("tunnel/data", params, event.data)

    # The end.

    async def close(self) -> None:
        """Ends both directions, once the other end has taken what was written.

        Waits for that a few seconds at most; the rest is sent in the background.
        """
        if self._ended or self._failure is not None:
            return
        self._is_dropped = True
        await self.write_eof()
        self._discard()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LINGER_SECONDS
        while not self._ended and self._failure is None and self._unacked:
            left = deadline - loop.time()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._wait(), left)
            except asyncio.TimeoutError:
                return
        self._drop_if_taken()

    def abort(self) -> None:
        """Ends the tunnel at once. What was not delivered is lost."""
        if not self._ended and self._failure is None:
            self._client.close_tunnel(self.id)
            self._finish(TunnelClosedError("the tunnel was closed"))

    def _discard(self) -> None:
        """Takes what has arrived without a reader."""
        self._lookahead = b""
        while self._buffer:
            seq, data = self._buffer.popleft()
            self._deliver(seq, len(data))
        if self._eof_seq is not None and not self._eof_delivered:
            self._deliver_eof()

    def _drop_if_taken(self) -> None:
        if self._is_dropped and not self._unacked and not self._ended and self._failure is None:
            self._client.close_tunnel(self.id)
            self._ended = True
            self._forget()

    def _end_if_done(self) -> None:
        """Ends the tunnel when both ends have acknowledged the end of the other."""
        if self._eof_delivered and self._shutdown_sent and not self._unacked and not self._ended:
            self._ended = True
            self._forget()

    def _forget(self) -> None:
        self._client.tunnels.pop(self.id, None)
        self._client.tunnel_bytes -= self._unacked_bytes
        self._unacked_bytes = 0
        self._unacked.clear()
        self._wake()

    def _finish(self, error: ExecServerError) -> None:
        if self._failure is None and not self._ended:
            self._failure = error
            self._forget()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait(self) -> None:
        waiter: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Messages.

    def handle_data(self, params: Json, data: Optional[bytes]) -> None:
        """Handles `tunnel/data`."""
        if not self._admit(params["seq"]):
            return
        if data is None:
            data = decode_base64(params.get("chunk"), "`tunnel/data`")
        self._buffer.append((params["seq"], data))
        if self._is_dropped:
            self._discard()
        self._wake()

    def handle_shutdown(self, params: Json) -> None:
        """Handles `tunnel/shutdown`."""
        if self._admit(params["seq"]):
            self._eof_seq = params["seq"]
            if not self._buffer:
                self._deliver_eof()
            self._wake()

    def _deliver_eof(self) -> None:
        assert self._eof_seq is not None
        self._delivered = self._eof_seq
        self._eof_delivered = True
        self._acknowledge()

    def _admit(self, seq: int) -> bool:
        """Returns whether an event is new. Closes the tunnel if it is impossible."""
        if seq <= self._received:
            return False
        if seq != self._received + 1 or self._eof_seq is not None:
            reason = f"event {seq} follows {self._received}"
            self._client.close_tunnel(self.id, reason)
            self._finish(TunnelClosedError(f"the server broke the protocol: {reason}"))
            return False
        self._received = seq
        return True

    def handle_acknowledge(self, params: Json) -> None:
        """Handles `tunnel/acknowledge`."""
        while self._unacked and self._unacked[0].seq <= params["seq"]:
            event = self._unacked.popleft()
            self._unacked_bytes -= event.cost
            self._client.tunnel_bytes -= event.cost
        self._end_if_done()
        self._drop_if_taken()
        self._wake()
        if self._client.tunnel_bytes > _ALL_WINDOWS_BYTES // 2:
            for tunnel in list(self._client.tunnels.values()):
                tunnel.handle_room()

    def handle_room(self) -> None:
        """Handles that other tunnels use less of what all share."""
        self._wake()

    def handle_close(self, params: Json) -> None:
        """Handles `tunnel/close`."""
        if self._eof_seq is not None and self._shutdown_sent:
            self._ended = True
            self._forget()
        else:
            reason = params.get("reason") or "closed by the server"
            self._finish(TunnelClosedError(f"the tunnel broke: {reason}"))

    def handle_resume(self) -> None:
        """Repeats what was not acknowledged, on a new connection."""
        if self._is_open:
            params = {"tunnelId": self.id, "seq": self._delivered}
            self._client.notify("tunnel/acknowledge", params)
            for event in list(self._unacked):
                self._transmit(event)

    def handle_end(self, error: ExecServerError) -> None:
        """Handles the end of the session."""
        self._finish(error)

    async def _open(self, params: Json) -> None:
        self._client.tunnels[self.id] = self
        client = self._client

        def close() -> None:
            client.close_tunnel(params["tunnelId"])

        try:
            await client.request("tunnel/open", params, on_orphaned=close)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                close()
            client.tunnels.pop(self.id, None)
            raise
        self._is_open = True


class AsyncListener:
    """A TCP port of the environment whose connections come here.

    Use :meth:`AsyncEnvironment.listen`. Iterating over it yields a tunnel for each connection.
    """

    def __init__(self, client: Client, listen_id: str) -> None:
        self._client = client
        self._incoming: Deque[AsyncTunnel] = deque()
        self._failure: Optional[ExecServerError] = None
        self._news = asyncio.Event()
        self._id = listen_id
        #: The port in the environment.
        self.port = 0

    async def __aenter__(self) -> "AsyncListener":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    def __aiter__(self) -> "AsyncListener":
        return self

    async def __anext__(self) -> AsyncTunnel:
        return await self.accept()

    async def accept(self) -> AsyncTunnel:
        """Waits for a connection.

        Raises:
            TunnelClosedError: The listener is closed.
        """
        while not self._incoming:
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        return self._incoming.popleft()

    async def close(self) -> None:
        """Closes the port. Its tunnels stay."""
        if self._failure is None:
            self._client.close_tunnel(self._id)
            self._finish(TunnelClosedError("the listener is closed"))
            while self._incoming:
                self._incoming.popleft().abort()

    def handle_incoming(self, params: Json) -> None:
        """Handles `tunnel/incoming`, which may be repeated."""
        tunnel_id = params["tunnelId"]
        if tunnel_id in self._client.tunnels:
            return
        if len(self._incoming) >= _MAX_INCOMING:
            self._client.close_tunnel(tunnel_id, "the client accepts no connections")
            return
        tunnel = AsyncTunnel(self._client, tunnel_id)
        tunnel._is_open = True
        self._client.tunnels[tunnel_id] = tunnel
        self._client.notify("tunnel/acknowledge", {"tunnelId": tunnel_id, "seq": 0})
        self._incoming.append(tunnel)
        self._news.set()

    def handle_close(self, params: Json) -> None:
        """Handles the `tunnel/close` of a listener that failed."""
        reason = params.get("reason") or "closed by the server"
        self._finish(TunnelClosedError(f"the listener failed: {reason}"))

    def handle_end(self, error: ExecServerError) -> None:
        """Handles the end of the session."""
        self._finish(error)

    def _finish(self, error: ExecServerError) -> None:
        self._failure = self._failure or error
        self._client.listeners.pop(self._id, None)
        self._news.set()

    async def _open(self, params: Json) -> None:
        self._client.listeners[self._id] = self
        client = self._client

        def close() -> None:
            client.close_tunnel(params["listenId"])

        try:
            result, _ = await client.request("tunnel/listen", params, on_orphaned=close)
        except BaseException:
            client.listeners.pop(self._id, None)
            raise
        self.port = int(result["port"])


class AsyncForward:
    """A port of this machine whose connections go into the environment.

    Use :meth:`AsyncEnvironment.forward`. Closing the environment closes it.
    """

    def __init__(
        self,
        client: Client,
        server: asyncio.base_events.Server,
        tasks: "Set[asyncio.Task[None]]",
    ) -> None:
        self._client = client
        self._server = server
        self._tasks = tasks
        client.forwards.add(self)
        sockets: List[socket.socket] = list(server.sockets)
        #: The address on this machine.
        self.host: str = sockets[0].getsockname()[0]
        #: The port on this machine.
        self.port: int = sockets[0].getsockname()[1]

    async def __aenter__(self) -> "AsyncForward":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the port and its connections."""
        self.handle_end()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def handle_end(self) -> None:
        """Handles the close of the environment."""
        self._client.forwards.discard(self)
        self._server.close()
        for task in list(self._tasks):
            task.cancel()


async def pass_both_ways(
    tunnel: AsyncTunnel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Passes bytes between a tunnel and a local connection until both directions have ended."""

    async def outgoing() -> None:
        while True:
            data = await reader.read(_CHUNK_BYTES)
            if not data:
                break
            await tunnel.write(data)
        await tunnel.write_eof()

    async def incoming() -> None:
        async for data in tunnel:
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    tasks = [asyncio.ensure_future(outgoing()), asyncio.ensure_future(incoming())]
    try:
        await asyncio.gather(*tasks)
        await tunnel.close()
    except (OSError, ExecServerError, ConnectionLostError):
        # One end broke, so the other one does.
        tunnel.abort()
        writer.transport.abort()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tunnel.abort()
        writer.close()
