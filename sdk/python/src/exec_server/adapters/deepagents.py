"""A sandbox backend for LangChain Deep Agents.

>>> backend = ExecServerBackend(Environment.connect("ws://127.0.0.1:8765"), cwd="/srv/app")
>>> agent = create_deep_agent(model=model, backend=backend)

The framework derives `ls`, `read`, `edit`, `grep` and `glob` from commands, which need a POSIX shell
and Python 3 in the environment. Whole files travel by `fs/readFile` and `fs/writeFile`.
"""

from __future__ import annotations

import uuid
from typing import List, Optional, Tuple

from deepagents.backends.protocol import (
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    WriteResult,
)
from deepagents.backends.protocol import FILE_NOT_FOUND
from deepagents.backends.sandbox import BaseSandbox

from ..errors import NotFoundError, RemoteError
from ..sandbox import SandboxPolicy
from ..sync import Environment
from ..types import STDOUT, Limits

#: Output of a command above which the rest is discarded.
MAX_OUTPUT_BYTES = 1024 * 1024
#: Seconds that a command may take if the agent sets no limit.
DEFAULT_TIMEOUT = 30 * 60


class ExecServerBackend(BaseSandbox):
    """Runs the commands and file tools of an agent in an environment."""

    def __init__(
        self,
        environment: Environment,
        *,
        cwd: Optional[str] = None,
        sandbox: Optional[SandboxPolicy] = None,
        timeout: int = DEFAULT_TIMEOUT,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> None:
        """Wraps an open environment, which the caller closes.

        Args:
            environment: Where commands run.
            cwd: Directory of commands. Default: that of the environment.
            sandbox: What commands and file operations may use.
            timeout: Seconds after which a command is killed, if the agent sets no limit.
            max_output: Bytes of output that a command's result keeps.
        """
        self._environment = environment
        self._cwd = cwd or environment.cwd
        self._sandbox = sandbox
        self._timeout = timeout
        self._max_output = max_output
        self._id = f"exec-server-{uuid.uuid4()}"

    @property
    def id(self) -> str:
        """Identifies this backend."""
        return self._id

    def execute(self, command: str, *, timeout: Optional[int] = None) -> ExecuteResponse:
        """Runs a shell command. Its stdout and stderr are joined; a timeout of 0 means none."""
        seconds = self._timeout if timeout is None else timeout
        process = self._environment.spawn(
            ["/bin/sh", "-c", command],
            stderr=STDOUT,
            cwd=self._cwd,
            sandbox=self._sandbox,
            limits=Limits(wall_ms=seconds * 1000) if seconds > 0 else None,
        )
        with process:
            assert process.stdout is not None
            output = process.stdout.read(self._max_output)
            truncated = len(output) == self._max_output and process.stdout.read(1) != b""
            if truncated:
                process.discard_output()
            code = process.wait()
            status = process.status
        text = output.decode("utf-8", "replace")
        if status is not None and status.cause == "wallLimit":
            text += f"\n[killed after {seconds} s]"
            code = 124
        return ExecuteResponse(output=text, exit_code=code, truncated=truncated)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Creates or replaces a file, and makes missing directories."""
        error = self._upload(file_path, content.encode())
        if error is not None:
            return WriteResult(error=f"Failed to write file '{file_path}': {error}")
        return WriteResult(path=file_path)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """As :meth:`write`."""
        [response] = await self.aupload_files([(file_path, content.encode())])
        if response.error is not None:
            return WriteResult(error=f"Failed to write file '{file_path}': {response.error}")
        return WriteResult(path=file_path)

    def upload_files(self, files: List[Tuple[str, bytes]]) -> List[FileUploadResponse]:
        """Writes files. One that fails does not keep the others from being written."""
        return [
            FileUploadResponse(path=path, error=self._upload(path, content))
            for path, content in files
        ]

    def download_files(self, paths: List[str]) -> List[FileDownloadResponse]:
        """Reads files. One that fails does not keep the others from being read."""
        return [self._download(path) for path in paths]

    def _upload(self, path: str, content: bytes) -> Optional[str]:
        if not path.startswith("/"):
            return INVALID_PATH
        try:
            self._environment.write_file(path, content, create_parents=True, sandbox=self._sandbox)
        except RemoteError as error:
            return self._error_code(path, error)
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error=INVALID_PATH)
        try:
            content = self._environment.read_file(path, sandbox=self._sandbox)
        except RemoteError as error:
            return FileDownloadResponse(path=path, error=self._error_code(path, error))
        return FileDownloadResponse(path=path, content=content)

    def _error_code(self, path: str, error: RemoteError) -> str:
        """Returns the framework's code for an error, or the server's text."""
        if isinstance(error, NotFoundError):
            return FILE_NOT_FOUND
        if "ermission denied" in error.message or "not permitted" in error.message:
            return PERMISSION_DENIED
        try:
            if self._environment.metadata(path, sandbox=self._sandbox).kind == "directory":
                return IS_DIRECTORY
        except RemoteError:
            pass
        return error.message
