"""A sandbox client for the OpenAI Agents SDK.

>>> client = ExecServerSandboxClient()
>>> options = ExecServerSandboxClientOptions(url="ws://127.0.0.1:8765")
>>> run_config = RunConfig(sandbox=SandboxRunConfig(client=client, options=options))

Each session has a workspace of its own, a directory in the environment. Commands may write there
and to temporary files, and have no network, unless the options say otherwise.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
import uuid
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional, Tuple, Union, cast

from agents.sandbox.errors import (
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.runtime_helpers import (
    RESOLVE_WORKSPACE_PATH_HELPER,
    RuntimeHelperScript,
)
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, User
from agents.sandbox.util.tar_utils import validate_tarfile

from ..environment import AsyncEnvironment
from ..errors import ExecServerError, NotFoundError, TimeoutExpired
from ..sandbox import SandboxPolicy

#: Bytes of stdout, and of stderr, above which a command is killed.
MAX_OUTPUT_BYTES = 64 * 1024 * 1024

_DEFAULT_ROOT = cast(str, Manifest.model_fields["root"].default)


class ExecServerSandboxClientOptions(BaseSandboxClientOptions):
    """Where and how the sessions of a client run."""

    type: Literal["exec_server"] = "exec_server"
    #: `ws://`, `wss://` or `unix://` URL of a server. Absent: this machine.
    url: Optional[str] = None
    #: `none`: no sandbox. `workspace-write`: the workspace and temporary files are writable.
    sandbox: Literal["none", "workspace-write"] = "workspace-write"
    #: Whether sandboxed commands have network.
    network: bool = False
    #: Directory of the environment in which workspaces are made. Absent: its temporary directory.
    workspaces: Optional[str] = None


class ExecServerSandboxSessionState(SandboxSessionState):
    """What is needed to find a session again. It contains no token."""

    type: Literal["exec_server"] = "exec_server"
    url: Optional[str] = None
    sandbox: Literal["none", "workspace-write"] = "workspace-write"
    network: bool = False


class ExecServerSandboxSession(BaseSandboxSession):
    """A workspace in an environment."""

    state: ExecServerSandboxSessionState

    def __init__(
        self, *, state: ExecServerSandboxSessionState, environment: AsyncEnvironment
    ) -> None:
        self.state = state
        self._environment = environment
        self._closed = False

    def _runtime_helpers(self) -> Tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> Optional[object]:
        return str(self.state.session_id)

    async def _validate_path_access(
        self, path: Union[Path, str], *, for_write: bool = False
    ) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _policy(self) -> Optional[SandboxPolicy]:
        if self.state.sandbox == "none":
            return None
        return SandboxPolicy.workspace_write([self.state.manifest.root], network=self.state.network)

    async def _prepare_backend_workspace(self) -> None:
        await self._environment.make_directory(self.state.manifest.root)

    async def _exec_internal(
        self, *command: Union[str, Path], timeout: Optional[float] = None
    ) -> ExecResult:
        argv = [str(word) for word in command]
        if not argv:
            return ExecResult(stdout=b"", stderr=b"", exit_code=0)
        variables = await self.state.manifest.environment.resolve()
        try:
            done = await self._environment.run(
                argv,
                capture_output=True,
                cwd=self.state.manifest.root,
                extra_env={name: value for name, value in variables.items() if value is not None},
                sandbox=self._policy(),
                timeout=timeout,
                max_output=MAX_OUTPUT_BYTES,
            )
        except TimeoutExpired as error:
            raise ExecTimeoutError(command=argv, timeout_s=timeout, cause=error) from error
        except ExecServerError as error:
            raise ExecTransportError(command=argv, cause=error, message=str(error)) from error
        return ExecResult(
            stdout=done.stdout or b"", stderr=done.stderr or b"", exit_code=done.returncode
        )

    async def read(self, path: Path, *, user: Union[str, User, None] = None) -> io.IOBase:
        """Returns the content of a file of the workspace."""
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        resolved = await self._validate_path_access(path)
        try:
            content = await self._environment.read_file(str(resolved), sandbox=self._policy())
        except NotFoundError as error:
            raise WorkspaceReadNotFoundError(path=resolved, cause=error) from error
        except ExecServerError as error:
            raise WorkspaceArchiveReadError(path=resolved, cause=error) from error
        return io.BytesIO(content)

    async def write(
        self, path: Path, data: io.IOBase, *, user: Union[str, User, None] = None
    ) -> None:
        """Creates or replaces a file of the workspace, and makes missing directories."""
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        resolved = await self._validate_path_access(path, for_write=True)
        content = _content(data, resolved)
        try:
            await self._environment.write_file(
                str(resolved), content, create_parents=True, sandbox=self._policy()
            )
        except ExecServerError as error:
            raise WorkspaceArchiveWriteError(path=resolved, cause=error) from error

    async def running(self) -> bool:
        """Returns whether the environment answers."""
        if self._closed:
            return False
        try:
            return await self._environment.exists(self.state.manifest.root)
        except ExecServerError:
            return False

    async def persist_workspace(self) -> io.IOBase:
        """Returns the workspace as a tar archive."""
        root = self._workspace_root_path()
        skipped = sorted(path.as_posix() for path in self._persist_workspace_skip_relpaths())
        command = ["tar", "-c", "-f", "-", *[f"--exclude=./{path}" for path in skipped], "."]
        result = await self._exec_internal(*command)
        if not result.ok():
            cause = ExecNonZeroError(result, command=command)
            raise WorkspaceArchiveReadError(path=root, cause=cause)
        return io.BytesIO(result.stdout)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpacks a tar archive into the workspace. One that leads out of it is refused."""
        root = self._workspace_root_path()
        content = _content(data, root)
        command = ["tar", "-x", "-f", "-"]
        try:
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as archive:
                validate_tarfile(archive, allow_external_symlink_targets=False)
            await self._environment.make_directory(self.state.manifest.root)
            done = await self._environment.run(
                command,
                input=content,
                capture_output=True,
                cwd=self.state.manifest.root,
                sandbox=self._policy(),
            )
        except Exception as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error
        if done.returncode != 0:
            result = ExecResult(
                stdout=done.stdout or b"", stderr=done.stderr or b"", exit_code=done.returncode
            )
            cause = ExecNonZeroError(result, command=command)
            raise WorkspaceArchiveWriteError(path=root, cause=cause)

    async def _shutdown_backend(self) -> None:
        if not self._closed:
            self._closed = True
            await self._environment.close()

    async def remove_workspace(self) -> None:
        """Removes the workspace with everything in it, and closes the connection."""
        if not self._closed:
            await self._environment.remove(
                self.state.manifest.root, recursive=True, missing_ok=True
            )
        await self._shutdown_backend()


class ExecServerSandboxClient(BaseSandboxClient[ExecServerSandboxClientOptions]):
    """Makes sandbox sessions in environments."""

    backend_id = "exec_server"
    supports_default_options = True

    def __init__(
        self,
        *,
        token: Optional[str] = None,
        instrumentation: Optional[Instrumentation] = None,
        dependencies: Optional[Dependencies] = None,
    ) -> None:
        """Makes a client. It connects when a session is created or resumed.

        Args:
            token: Token of the server. It is never part of a session's state.
            instrumentation: Gets the events of sessions.
            dependencies: Shared with sessions, as in other clients.
        """
        super().__init__()
        self._token = token
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: Union[SnapshotSpec, SnapshotBase, None] = None,
        manifest: Optional[Manifest] = None,
        options: Optional[ExecServerSandboxClientOptions] = None,
    ) -> SandboxSession:
        """Connects, and makes a session with a workspace of its own."""
        options = options or ExecServerSandboxClientOptions()
        environment = await self._connect(options.url)
        session_id = uuid.uuid4()
        try:
            resolved = manifest or Manifest()
            if resolved.root == _DEFAULT_ROOT:
                parent = options.workspaces or environment.info.temp_dir or "/tmp"
                root = posixpath.join(parent, f"exec-server-workspace-{session_id}")
                resolved = resolved.model_copy(update={"root": root})
            self._validate_manifest_for_create(resolved)
            state = ExecServerSandboxSessionState(
                session_id=session_id,
                manifest=resolved,
                snapshot=resolve_snapshot(snapshot, str(session_id)),
                url=options.url,
                sandbox=options.sandbox,
                network=options.network,
            )
        except BaseException:
            await environment.close()
            raise
        return self._session(state, environment)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Removes the workspace of a session."""
        inner = session._inner
        if not isinstance(inner, ExecServerSandboxSession):
            raise TypeError("the session belongs to another client")
        await inner.remove_workspace()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Connects to the environment of a session again, whose workspace is still there."""
        if not isinstance(state, ExecServerSandboxSessionState):
            raise TypeError("the state belongs to another client")
        state.assert_path_grants_rebound()
        environment = await self._connect(state.url)
        try:
            preserved = await environment.exists(state.manifest.root)
        except BaseException:
            await environment.close()
            raise
        if not preserved:
            state.workspace_root_ready = False
        session = self._session(state, environment)
        session._inner._set_start_state_preserved(preserved)
        return session

    def deserialize_session_state(self, payload: Dict[str, object]) -> SandboxSessionState:
        """Reads a state that `serialize_session_state` wrote."""
        return self._deserialize_session_state_payload(payload, ExecServerSandboxSessionState)

    async def _connect(self, url: Optional[str]) -> AsyncEnvironment:
        if url is None:
            return await AsyncEnvironment.local()
        return await AsyncEnvironment.connect(url, token=self._token)

    def _session(
        self, state: ExecServerSandboxSessionState, environment: AsyncEnvironment
    ) -> SandboxSession:
        inner = ExecServerSandboxSession(state=state, environment=environment)
        return self._wrap_session(inner, instrumentation=self._instrumentation)


def _content(data: Any, path: Path) -> bytes:
    content = data.read()
    if isinstance(content, str):
        content = content.encode()
    if not isinstance(content, (bytes, bytearray)):
        raise WorkspaceWriteTypeError(path=path, actual_type=type(content).__name__)
    return bytes(content)


__all__: List[str] = [
    "ExecServerSandboxClient",
    "ExecServerSandboxClientOptions",
    "ExecServerSandboxSession",
    "ExecServerSandboxSessionState",
]
