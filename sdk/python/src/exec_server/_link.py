"""Links: connections that carry whole messages in both directions.

A link hands every received message to a callback, in the event loop's turn in which it arrived, and
reports its end once. Sending never waits; :meth:`Link.drain` does.
"""

from __future__ import annotations

import abc
import asyncio
import ssl
from typing import Callable, Dict, List, Optional, Type, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import WebSocketURI

from ._framing import ReceivedMessage
from .errors import AuthenticationError, ConnectError

#: Largest message that a server may send: a file of 512 MiB in base64.
MAX_MESSAGE_BYTES = 768 << 20
#: Unsent bytes above which :meth:`Link.drain` waits.
_HIGH_WATER_BYTES = 1 << 20


class TransientConnectError(ConnectError):
    """No link could be opened now; another attempt may succeed."""


class Link(abc.ABC):
    """A connection that carries whole messages.

    ``on_message`` and ``on_close`` are set by its user right after it was opened.
    """

    on_message: Callable[[ReceivedMessage], None]
    on_close: Callable[[str], None]
    #: Whether raw data may travel beside a JSON header.
    carries_raw_data: bool
    #: Whether the transport can make the peer send something.
    has_pings: bool

    def __init__(self) -> None:
        #: Time of the loop at which the last bytes arrived.
        self.last_received = 0.0
        #: Size of all messages that were queued.
        self.queued_bytes = 0
        self.is_paused = False
        #: Why the link has ended, if it has, and the error that this is before the handshake.
        self.end_reason: Optional[str] = None
        self.end_error: Type[ConnectError] = TransientConnectError
        self._writable = asyncio.Event()
        self._writable.set()

    @abc.abstractmethod
    def send(self, message: bytes, binary: bool) -> None:
        """Queues a message. Does nothing once the link has ended."""

    @property
    @abc.abstractmethod
    def unsent_bytes(self) -> int:
        """Returns the size of what is queued, but not sent."""

    @abc.abstractmethod
    def ping(self) -> None:
        """Makes the peer send something, if the link has pings."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Stops reading, so that the peer has to stop sending."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Reads again."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the link in order, as soon as queued messages are sent. Does not wait."""

    @abc.abstractmethod
    def abort(self, reason: str) -> None:
        """Ends the link at once, and reports `reason`."""

    @abc.abstractmethod
    async def wait_closed(self) -> None:
        """Waits until the link has ended, a few seconds at most."""

    async def drain(self) -> None:
        """Waits until the queue of unsent messages is short."""
        await self._writable.wait()


class WebSocketLink(Link, asyncio.Protocol):
    """A websocket over TCP, TLS or a unix socket."""

    carries_raw_data = True
    has_pings = True

    def __init__(self, uri: WebSocketURI, headers: "list[tuple[str, str]]") -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = ClientProtocol(uri, max_size=MAX_MESSAGE_BYTES)
        self._headers = headers
        self._transport: Optional[asyncio.Transport] = None
        self._opened: "asyncio.Future[None]" = self._loop.create_future()
        # Marks the error as seen: its waiter may be gone.
        self._opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())
        self._closed: "asyncio.Future[None]" = self._loop.create_future()
        self._fragments: List[bytes] = []
        self._fragment_bytes = 0
        self._reason: Optional[str] = None
        self.on_message = _ignore_message
        self.on_close = _ignore_reason

    async def open(self) -> None:
        """Waits for the end of the handshake."""
        await self._opened

    # The rest of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other loops have transports of other classes.
        self._transport = stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        request = self._protocol.connect()
        for name, value in self._headers:
            request.headers[name] = value
        self._protocol.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.last_received = self._loop.time()
        self._protocol.receive_data(data)
        self._handle_events()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._handle_events()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._writable.set()
        reason = self._reason or (str(exc) if exc else "") or self._close_reason()
        if not self._opened.done():
            self._opened.set_exception(TransientConnectError(reason))
        if not self._closed.done():
            self._closed.set_result(None)
            self.end_reason = reason
            on_close, self.on_close = self.on_close, _ignore_reason
            self.on_message = _ignore_message
            on_close(reason)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Link.

    def send(self, message: bytes, binary: bool) -> None:
        if self._protocol.state is not State.OPEN:
            return
        if binary:
            self._protocol.send_binary(message)
        else:
            self._protocol.send_text(message)
        self.queued_bytes += len(message)
        self._flush()

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def ping(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"")
            self._flush()

    def pause(self) -> None:
        if self._transport is not None and not self.is_paused and not self._transport.is_closing():
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self.is_paused:
            self.is_paused = False
            self.last_received = self._loop.time()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def close(self) -> None:
        self._reason = self._reason or "the client closed the connection"
        self.resume()
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._flush()
        if self._transport is not None:
            # Sends what is queued first.
            self._transport.close()

    def abort(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await asyncio.wait({self._closed}, timeout=2)
        if not self._closed.done():
            self.abort("the connection did not close in time")
            await asyncio.wait({self._closed}, timeout=1)

    # How it works inside.

    def _flush(self) -> None:
        transport = self._transport
        assert transport is not None
        for data in self._protocol.data_to_send():
            if transport.is_closing():
                continue
            if data:
                transport.write(data)
            elif transport.can_write_eof():
                transport.write_eof()

    def _handle_events(self) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._handle_frame(event)
            elif isinstance(event, Response) and not self._opened.done():
                error = self._protocol.handshake_exc
                if error is None:
                    self.last_received = self._loop.time()
                    self._opened.set_result(None)
        self._flush()
        if not self._opened.done() and self._protocol.handshake_exc is not None:
            self._opened.set_exception(_handshake_error(self._protocol.handshake_exc))
        if self._transport is not None and self._protocol.state is not State.OPEN:
            if self._protocol.state is State.CLOSED or self._protocol.close_expected():
                self._transport.close()

    def _handle_frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY) and frame.fin:
            self.on_message(cast(ReceivedMessage, frame.data))
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._fragments.append(bytes(frame.data))
            self._fragment_bytes += len(frame.data)
            if self._fragment_bytes > MAX_MESSAGE_BYTES:
                self.abort("the server sent a message that is too long")
            elif frame.fin:
                message, self._fragments = b"".join(self._fragments), []
                self._fragment_bytes = 0
                self.on_message(message)

    def _close_reason(self) -> str:
        received = self._protocol.close_rcvd
        if received is None:
            return "the server ended the connection"
        reason = f": {received.reason}" if received.reason else ""
        return f"the server closed the connection with code {received.code}{reason}"


#: Exit codes with which `exec-server` commands say that another attempt will not help.
_FINAL_EXIT_CODES: Dict[int, Type[ConnectError]] = {
    2: ConnectError,
    77: AuthenticationError,
    78: ConnectError,
    126: ConnectError,
    127: ConnectError,
}
#: What is kept of the errors of a program.
_ERROR_BYTES = 4096


class ProgramLink(Link):
    """A program that speaks the protocol on its standard input and output, one message a line."""

    carries_raw_data = False
    has_pings = False

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._reason: Optional[str] = None
        self.last_received = self._loop.time()
        self.on_message = _ignore_message
        self.on_close = _ignore_reason
        self._errors = b""
        self._reading_errors: "Optional[asyncio.Task[None]]" = None
        if process.stderr is not None:
            self._reading_errors = self._loop.create_task(self._read_errors(process.stderr))
        self._task = self._loop.create_task(self._read())
        self._end: "Optional[asyncio.Task[None]]" = None

    def send(self, message: bytes, binary: bool) -> None:
        stdin = self._process.stdin
        assert stdin is not None and not binary
        if not stdin.is_closing():
            stdin.write(message + b"\n")
            self.queued_bytes += len(message)

    @property
    def unsent_bytes(self) -> int:
        stdin = self._process.stdin
        return 0 if stdin is None else stdin.transport.get_write_buffer_size()

    def ping(self) -> None:
        pass

    def pause(self) -> None:
        self.is_paused = True
        self._resumed.clear()

    def resume(self) -> None:
        self.is_paused = False
        self._resumed.set()

    def close(self) -> None:
        self._reason = self._reason or "the client closed the connection"
        self.resume()
        self._end_program()

    def abort(self, reason: str) -> None:
        self._reason = self._reason or reason
        self.resume()
        self._kill()

    async def wait_closed(self) -> None:
        await asyncio.wait({self._task}, timeout=6)
        if self._end is not None:
            await asyncio.wait({self._end}, timeout=6)

    async def drain(self) -> None:
        if self._process.stdin is not None:
            try:
                await self._process.stdin.drain()
            except ConnectionError:
                pass

    def _end_program(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._end is None:
            self._end = self._loop.create_task(self._wait_for_end())

    def _kill(self) -> None:
        if self._process.returncode is None:
            try:
                self._process.kill()
            except ProcessLookupError:
                pass

    async def _wait_for_end(self) -> None:
        """Kills the program if it does not end after its input has."""
        try:
            await asyncio.wait_for(self._process.wait(), 5)
        except (asyncio.TimeoutError, asyncio.CancelledError):
            self._kill()

    async def _read_errors(self, stderr: asyncio.StreamReader) -> None:
        while True:
            data = await stderr.read(_ERROR_BYTES)
            if not data:
                return
            self._errors = (self._errors + data)[-_ERROR_BYTES:]

    async def _describe_end(self, reason: str) -> str:
        """Describes the end of a program that has closed its output."""
        try:
            code = await asyncio.wait_for(self._process.wait(), 1)
        except asyncio.TimeoutError:
            return reason
        self.end_error = _FINAL_EXIT_CODES.get(code, TransientConnectError)
        if self._reading_errors is not None:
            await asyncio.wait({self._reading_errors}, timeout=1)
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("error: ")] or lines[-1:]
        text = f": {errors[-1]}" if errors else ""
        return f"the program ended with exit code {code}{text}"

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        parts: List[bytes] = []
        size = 0
        reason = "the program ended"
        try:
            while True:
                await self._resumed.wait()
                data = await stdout.read(1 << 18)
                if not data:
                    break
                self.last_received = self._loop.time()
                *lines, rest = data.split(b"\n")
                for line in lines:
                    parts.append(line)
                    message = b"".join(parts)
                    parts, size = [], 0
                    if message.strip():
                        self.on_message(message)
                if rest:
                    parts.append(rest)
                    size += len(rest)
                    if size > MAX_MESSAGE_BYTES:
                        reason = "the program sent a line that is too long"
                        break
            if self._reason is None and not parts:
                reason = await self._describe_end(reason)
            # A signal would take the exit status from the watcher of asyncio, which then complains.
            self._end_program()
        except BaseException:
            self._kill()
            raise
        finally:
            self.end_reason = self._reason or reason
            on_close, self.on_close = self.on_close, _ignore_reason
            self.on_message = _ignore_message
            on_close(self.end_reason)


def _ignore_message(message: ReceivedMessage) -> None:
    pass


def _ignore_reason(reason: str) -> None:
    pass


def _handshake_error(error: Exception) -> ConnectError:
    if not isinstance(error, InvalidStatus):
        # A response that is cut off is invalid, too.
        is_cut = isinstance(error, InvalidMessage) or not isinstance(error, InvalidHandshake)
        kind = TransientConnectError if is_cut else ConnectError
        return kind(f"the server did not accept the websocket: {error}")
    response = error.response
    status = response.status_code
    body = bytes(response.body or b"")[:300].decode("utf-8", "replace").strip()
    text = f"the server refused the connection with status {status}"
    if body:
        text += f": {body}"
    if status in (401, 403):
        return AuthenticationError(f"{text}; check the token")
    # 429 and the 5xx pass; everything else stays wrong.
    return TransientConnectError(text) if status == 429 or status >= 500 else ConnectError(text)


async def open_websocket(
    uri: WebSocketURI,
    headers: "list[tuple[str, str]]",
    tls: Optional[ssl.SSLContext],
    unix_path: Optional[str],
) -> WebSocketLink:
    """Opens a websocket. Leaves nothing open if it fails or is cancelled."""
    loop = asyncio.get_running_loop()
    link = WebSocketLink(uri, headers)
    try:
        if unix_path is not None:
            await loop.create_unix_connection(lambda: link, unix_path)
        else:
            name = uri.host if tls is not None else None
            await loop.create_connection(
                lambda: link, uri.host, uri.port, ssl=tls, server_hostname=name
            )
        await link.open()
    except ssl.SSLCertVerificationError as error:
        raise ConnectError(f"the server's certificate is not trusted: {error}") from error
    except ssl.SSLError as error:
        raise ConnectError(f"TLS failed: {error}") from error
    except OSError as error:
        link.abort("not opened")
        if isinstance(error, ConnectError):
            raise
        raise TransientConnectError(str(error) or type(error).__name__) from error
    except BaseException:
        link.abort("not opened")
        raise
    return link


async def open_program(
    argv: "list[str]", env: "Optional[dict[str, str]]", keep_errors: bool
) -> ProgramLink:
    """Starts a program that speaks the protocol on stdin and stdout.

    Its errors go to those of this program, or with `keep_errors` into the reason of its end.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if keep_errors else None,
            env=env,
            limit=1 << 20,
            start_new_session=True,
        )
    except OSError as error:
        raise ConnectError(f"cannot start `{argv[0]}`: {error.strerror or error}") from error
    return ProgramLink(process)
