"""The values that calls take and return."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import Any, Dict, Generic, List, Mapping, Optional, Sequence, TypeVar, Union

from ._framing import Json
from ._paths import native_text, uri_path
from .errors import CalledProcessError

AnyText = TypeVar("AnyText", bytes, str)

#: Standard stream of a process that the caller reads or writes, as in :mod:`subprocess`.
PIPE = subprocess.PIPE
#: Joins stderr to stdout, in the order in which the server read them.
STDOUT = subprocess.STDOUT
#: Discards output, or gives empty input.
DEVNULL = subprocess.DEVNULL


@dataclass(frozen=True)
class TerminalSize:
    """The size of a terminal in characters."""

    rows: int = 24
    cols: int = 80

    def to_wire(self) -> Json:
        """Returns the value as it travels."""
        return {"rows": self.rows, "cols": self.cols}


@dataclass(frozen=True)
class Limits:
    """Limits of a process. `None` means unlimited."""

    #: Time after the start at which the tree is killed.
    wall_ms: Optional[int] = None
    #: Time without output and input after which the tree is killed.
    idle_ms: Optional[int] = None
    #: Processor time of each process.
    cpu_ms: Optional[int] = None
    #: Memory of each process, and resident memory of the tree.
    memory_bytes: Optional[int] = None
    #: Processes of the tree.
    processes: Optional[int] = None
    #: Open descriptors of each process.
    open_files: Optional[int] = None
    #: Size of a file that is written.
    file_bytes: Optional[int] = None

    def to_wire(self) -> Json:
        """Returns the value as it travels."""
        names = {
            "wallMs": self.wall_ms,
            "idleMs": self.idle_ms,
            "cpuMs": self.cpu_ms,
            "memoryBytes": self.memory_bytes,
            "processes": self.processes,
            "openFiles": self.open_files,
            "fileBytes": self.file_bytes,
        }
        return {name: value for name, value in names.items() if value is not None}


@dataclass(frozen=True)
class Usage:
    """What a process and the descendants that it waited for used."""

    wall_ms: int
    user_ms: int
    system_ms: int
    max_rss_bytes: int

    @classmethod
    def from_wire(cls, value: Optional[Json]) -> "Optional[Usage]":
        """Reads the value as it travels."""
        if not value:
            return None
        return cls(value["wallMs"], value["userMs"], value["systemMs"], value["maxRssBytes"])


@dataclass(frozen=True)
class ExitStatus:
    """How a process ended."""

    #: The command's status; 128 + n if signal n killed it; -1 if it is unknown.
    returncode: int
    #: Name of the signal that killed it, such as ``SIGKILL``.
    signal: Optional[str] = None
    #: ``exit``, ``signal``, ``terminated``, ``wallLimit``, ``idleLimit``, ``memoryLimit``,
    #: ``processLimit``, ``lost``, or what a newer server adds. Absent on older servers.
    cause: Optional[str] = None
    usage: Optional[Usage] = None
    #: Whether the command probably failed because its sandbox denied something.
    sandbox_denied: bool = False

    @classmethod
    def from_wire(cls, value: Json) -> "ExitStatus":
        """Reads the value as it travels."""
        return cls(
            returncode=int(value["exitCode"]),
            signal=value.get("signal"),
            cause=value.get("cause"),
            usage=Usage.from_wire(value.get("usage")),
            sandbox_denied=bool(value.get("sandboxDenied")),
        )


class CompletedProcess(subprocess.CompletedProcess, Generic[AnyText]):  # type: ignore[type-arg]
    """The result of :meth:`Environment.run`, shaped like :class:`subprocess.CompletedProcess`."""

    args: List[str]
    #: The command's status, or 128 + n if signal n killed it.
    returncode: int
    #: Collected output; `None` if it was not captured.
    stdout: Optional[AnyText]
    stderr: Optional[AnyText]

    def __init__(
        self,
        args: Sequence[str],
        status: ExitStatus,
        stdout: Optional[AnyText] = None,
        stderr: Optional[AnyText] = None,
    ) -> None:
        super().__init__(list(args), status.returncode, stdout, stderr)
        #: Everything known about the end of the process.
        self.status = status

    @property
    def signal(self) -> Optional[str]:
        """Name of the signal that killed the command."""
        return self.status.signal

    def check_returncode(self) -> None:
        """Raises :class:`CalledProcessError` if the command failed."""
        if self.returncode != 0:
            raise CalledProcessError(
                self.returncode, self.args, self.stdout, self.stderr, self.signal
            )


@dataclass(frozen=True)
class ProcessInfo:
    """An entry of the list of processes."""

    id: str
    argv: List[str]
    cwd: str
    tty: bool
    running: bool
    #: ``running``, ``exited`` or ``lost``.
    state: str
    returncode: Optional[int]
    #: Unix time in milliseconds.
    started_at_ms: int
    pid: Optional[int]
    detached: bool
    durable: bool
    output_bytes: int
    ended_at_ms: Optional[int]
    usage: Optional[Usage]

    @classmethod
    def from_wire(cls, value: Json) -> "ProcessInfo":
        """Reads the value as it travels."""
        return cls(
            id=value["processId"],
            argv=list(value["argv"]),
            cwd=native_text(uri_path(value["cwd"])),
            tty=value["tty"],
            running=value["running"],
            state=value.get("state") or ("running" if value["running"] else "exited"),
            returncode=value.get("exitCode"),
            started_at_ms=value["startedAtMs"],
            pid=value.get("osPid"),
            detached=value["detached"],
            durable=bool(value.get("durable")),
            output_bytes=value.get("outputBytes") or 0,
            ended_at_ms=value.get("endedAtMs"),
            usage=Usage.from_wire(value.get("usage")),
        )


@dataclass(frozen=True)
class Snapshot:
    """Head and tail of the output of a process."""

    stdout: bytes
    stderr: bytes
    terminal: bytes
    #: Whether output between head and tail is missing, and how much.
    truncated: bool
    omitted_bytes: int
    returncode: Optional[int]
    running: bool


@dataclass(frozen=True)
class EnvironmentInfo:
    """What the server says about its host."""

    shell_name: Optional[str]
    shell_path: Optional[str]
    cwd: Optional[str]
    home: Optional[str]
    platform: Optional[str]
    temp_dir: Optional[str]
    executor_version: Optional[str]
    #: Features of the server; absent means false.
    capabilities: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def from_wire(cls, value: Json) -> "EnvironmentInfo":
        """Reads the value as it travels."""
        shell = value.get("shell") or {}

        def path(name: str) -> Optional[str]:
            uri = value.get(name)
            return None if uri is None else native_text(uri_path(uri))

        return cls(
            shell_name=shell.get("name"),
            shell_path=shell.get("path"),
            cwd=path("cwd"),
            home=path("userHomeDir"),
            platform=value.get("platformOs"),
            temp_dir=path("tempDir"),
            executor_version=value.get("executorVersion"),
            capabilities=dict(value.get("capabilities") or {}),
        )


@dataclass(frozen=True)
class Metadata:
    """Type, size and times of a path."""

    #: ``file``, ``directory``, ``symlink`` (dangling, or not followed) or ``other``.
    kind: str
    #: Whether the path itself is a link, also if it was followed.
    is_symlink: bool
    size: int
    #: Permission bits; `None` where the server does not say.
    mode: Optional[int]
    #: Unix time in milliseconds, 0 if unknown.
    created_at_ms: int
    modified_at_ms: int
    #: Text of the link.
    link_target: Optional[str] = None


@dataclass(frozen=True)
class DirectoryEntry:
    """An entry of a directory."""

    name: str
    #: ``file``, ``directory``, ``symlink`` (dangling) or ``other``; of the target if it is a link.
    kind: str
    mode: Optional[int] = None
    link_target: Optional[str] = None


@dataclass(frozen=True)
class WalkEntry:
    """An entry of a tree."""

    path: str
    #: ``file`` or ``directory``.
    kind: str


@dataclass(frozen=True)
class WalkResult:
    """What a walk found."""

    entries: List[WalkEntry]
    #: Directories that could not be read, with the reason.
    errors: Dict[str, str]
    #: Whether a limit ended the walk.
    truncated: bool


@dataclass(frozen=True)
class SearchMatch:
    """A line that matches."""

    path: str
    #: From 1.
    line: int
    #: From 1.
    column: int
    text: str
    before: List[str]
    after: List[str]


@dataclass(frozen=True)
class SearchResult:
    """What a search found."""

    matches: List[SearchMatch]
    truncated: bool


@dataclass(frozen=True)
class FindResult:
    """What a search for names found."""

    paths: List[str]
    truncated: bool


@dataclass(frozen=True)
class FileChange:
    """A path that changed."""

    path: str
    #: ``created``, ``modified``, ``removed`` or ``renamed``.
    kind: str


@dataclass(frozen=True)
class WatchEvent:
    """What a watch reports."""

    changes: List[FileChange]
    #: Changes were lost, also because the connection broke: look at everything again.
    overflow: bool


@dataclass(frozen=True)
class ListeningPort:
    """A TCP port on which a program of the host listens."""

    port: int
    address: str
    #: Process of the session that has it open.
    process_id: Optional[str]
    pid: Optional[int]
    program: Optional[str]


def collect_json(value: Mapping[str, Any]) -> Json:
    """Leaves out members that are `None`."""
    return {name: member for name, member in value.items() if member is not None}


Argument = Union[str, bytes]
