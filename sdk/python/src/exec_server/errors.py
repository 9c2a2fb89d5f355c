"""The errors of this package.

Every error derives from :class:`ExecServerError`. Where the standard library has an error for the
same situation, the class derives from that one too, so that code written for :mod:`subprocess` or
for local files keeps working: a missing file is a ``FileNotFoundError``, a failed ``check`` a
``subprocess.CalledProcessError``.
"""

from __future__ import annotations

import errno
import subprocess
from typing import Optional, Sequence, Union

Output = Union[bytes, str, None]

INVALID_REQUEST = -32600
UNKNOWN_METHOD = -32601
INVALID_PARAMS = -32602
HOST_REFUSED = -32603
NOT_FOUND = -32004
SESSION_ATTACHED = -32010


class ExecServerError(Exception):
    """Base class of all errors of this package."""


class ConnectError(ExecServerError, ConnectionError):
    """No connection to the server could be opened."""


class AuthenticationError(ConnectError):
    """The server refused the token, or wants one."""


class ProtocolError(ExecServerError):
    """The server sent what the protocol does not allow."""


class ClosedError(ExecServerError):
    """The environment is closed, or its event loop is."""


class ConnectionLostError(ExecServerError, ConnectionError):
    """The connection broke."""


class SessionLostError(ConnectionLostError):
    """The connection broke and the session could not be resumed: its processes are lost."""


class CallInterruptedError(ConnectionLostError):
    """The connection broke before the response to a call that may not be repeated.

    The call may have had its effect. Only the caller can decide whether to repeat it.
    """


class RemoteError(ExecServerError):
    """The server answered a call with an error."""

    def __init__(self, code: int, message: str, method: str) -> None:
        super().__init__(message)
        #: The error code of the protocol.
        self.code = code
        #: The server's text, for people.
        self.message = message
        #: The method that failed.
        self.method = method

    def __str__(self) -> str:
        return self.message


class NotFoundError(RemoteError, FileNotFoundError):
    """A path or a handle does not exist (-32004)."""

    def __init__(self, code: int, message: str, method: str) -> None:
        super().__init__(code, message, method)
        self.errno = errno.ENOENT
        self.strerror = message


class InvalidRequestError(RemoteError):
    """The server refused the call because of its state (-32600): an id in use, a directory where a
    file is needed, missing permissions."""


class InvalidParamsError(RemoteError, ValueError):
    """The server cannot do what the parameters ask for (-32602)."""


class HostError(RemoteError, OSError):
    """The host refused, or a limit was reached (-32603)."""


class UnsupportedError(RemoteError, NotImplementedError):
    """The server lacks what the call needs (-32601): it is an older one or the stock server."""


class ProcessFailedError(ExecServerError):
    """The events of one process are unusable. It was ended; other processes go on."""


class OutputGapError(ExecServerError):
    """Output of a detached process was evicted before it was read. Reading can go on after it."""


class OutputLimitError(ExecServerError):
    """More was collected than the caller allows."""


class TunnelClosedError(ExecServerError, ConnectionError):
    """A tunnel or its listener is closed, or the connection in the environment broke."""


class StdinClosedError(ExecServerError, BrokenPipeError):
    """The process has no open stdin."""


class CalledProcessError(ExecServerError, subprocess.CalledProcessError):
    """A command failed, and ``check`` was asked for."""

    def __init__(
        self,
        returncode: int,
        cmd: Sequence[str],
        output: Output = None,
        stderr: Output = None,
        signal: Optional[str] = None,
    ) -> None:
        subprocess.CalledProcessError.__init__(self, returncode, list(cmd), output, stderr)
        #: Name of the signal that killed the command, such as ``SIGKILL``.
        self.signal = signal

    def __str__(self) -> str:
        how = f"was killed by {self.signal}" if self.signal else "failed"
        return f"command {self.cmd!r} {how}: exit code {self.returncode}"


class TimeoutExpired(ExecServerError, subprocess.TimeoutExpired):
    """A command took longer than the caller's timeout."""

    def __init__(
        self,
        cmd: Sequence[str],
        timeout: float,
        output: Output = None,
        stderr: Output = None,
    ) -> None:
        subprocess.TimeoutExpired.__init__(self, list(cmd), timeout, output, stderr)

    def __str__(self) -> str:
        return f"command {self.cmd!r} did not end within {self.timeout} seconds"


def remote_error(code: int, message: str, method: str) -> RemoteError:
    """Makes the error of the class that belongs to an error code."""
    classes = {
        NOT_FOUND: NotFoundError,
        INVALID_REQUEST: InvalidRequestError,
        INVALID_PARAMS: InvalidParamsError,
        HOST_REFUSED: HostError,
        UNKNOWN_METHOD: UnsupportedError,
    }
    return classes.get(code, RemoteError)(code, message, method)
