"""Runs commands and file operations where the code lives, from Python.

:class:`Environment` is for ordinary code and :class:`AsyncEnvironment` for asyncio; both have the
same methods over the same core.

>>> from exec_server import Environment
>>> with Environment.connect("ws://127.0.0.1:8080") as env:  # doctest: +SKIP
...     done = env.run(["sh", "-c", "cat; exit 3"], input=b"hi", capture_output=True)
"""

from ._connector import find_program
from ._version import __version__
from .environment import AsyncEnvironment
from .errors import (
    AuthenticationError,
    CalledProcessError,
    CallInterruptedError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    ExecServerError,
    HostError,
    InvalidParamsError,
    InvalidRequestError,
    NotFoundError,
    OutputGapError,
    OutputLimitError,
    ProcessFailedError,
    ProtocolError,
    RemoteError,
    SessionLostError,
    StdinClosedError,
    TimeoutExpired,
    TunnelClosedError,
    UnsupportedError,
)
from .files import AsyncFile, AsyncWatch
from .process import AsyncProcess, InputStream, OutputStream
from .sandbox import Entry, SandboxPolicy
from .sync import Environment, Forward, Listener, Process, Tunnel, Watch
from .tunnels import AsyncForward, AsyncListener, AsyncTunnel
from .types import (
    DEVNULL,
    PIPE,
    STDOUT,
    CompletedProcess,
    DirectoryEntry,
    EnvironmentInfo,
    ExitStatus,
    FileChange,
    FindResult,
    Limits,
    ListeningPort,
    Metadata,
    ProcessInfo,
    SearchMatch,
    SearchResult,
    Snapshot,
    TerminalSize,
    Usage,
    WalkEntry,
    WalkResult,
    WatchEvent,
)

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "AsyncEnvironment",
    "AsyncFile",
    "AsyncForward",
    "AsyncListener",
    "AsyncProcess",
    "AsyncTunnel",
    "AsyncWatch",
    "AuthenticationError",
    "CallInterruptedError",
    "CalledProcessError",
    "ClosedError",
    "CompletedProcess",
    "ConnectError",
    "ConnectionLostError",
    "DirectoryEntry",
    "Entry",
    "Environment",
    "EnvironmentInfo",
    "ExecServerError",
    "ExitStatus",
    "FileChange",
    "FindResult",
    "Forward",
    "HostError",
    "InputStream",
    "InvalidParamsError",
    "InvalidRequestError",
    "Limits",
    "Listener",
    "ListeningPort",
    "Metadata",
    "NotFoundError",
    "OutputGapError",
    "OutputLimitError",
    "OutputStream",
    "Process",
    "ProcessFailedError",
    "ProcessInfo",
    "ProtocolError",
    "RemoteError",
    "SandboxPolicy",
    "SearchMatch",
    "SearchResult",
    "SessionLostError",
    "Snapshot",
    "StdinClosedError",
    "TerminalSize",
    "TimeoutExpired",
    "Tunnel",
    "TunnelClosedError",
    "UnsupportedError",
    "Usage",
    "WalkEntry",
    "WalkResult",
    "Watch",
    "WatchEvent",
    "__version__",
    "find_program",
]
