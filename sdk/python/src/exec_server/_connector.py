"""Connectors: how to reach a server. Each opens as many links as a client needs in its life."""

from __future__ import annotations

import abc
import asyncio
import ipaddress
import os
import shutil
import socket
import ssl
import stat
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import unquote

from websockets.exceptions import InvalidURI
from websockets.uri import WebSocketURI, parse_uri

from ._link import Link, TransientConnectError, open_program, open_websocket
from .errors import AuthenticationError, ConnectError

#: Limit of opening a link.
CONNECT_TIMEOUT = 10.0
#: Limit of starting the server of this machine.
_START_TIMEOUT = 20.0

TlsOption = Union[ssl.SSLContext, str, "os.PathLike[str]", None]


class Connector(abc.ABC):
    """Opens links to one server."""

    #: For error messages.
    name: str

    @abc.abstractmethod
    async def open(self) -> Link:
        """Opens a link, and leaves none open if it fails."""


class UrlConnector(Connector):
    """A listening server: `ws://`, `wss://` or `unix:`."""

    def __init__(
        self,
        url: str,
        token: Optional[str] = None,
        headers: Optional[Mapping[str, str]] = None,
        tls: TlsOption = None,
    ) -> None:
        self.name = url
        self._unix_path: Optional[str] = None
        self._tls: Optional[ssl.SSLContext] = None
        if url.startswith("unix:"):
            path = url[len("unix:") :]
            path = unquote(path[2:]) if path.startswith("//") else path
            if not path.startswith("/"):
                raise ValueError(f"invalid URL `{url}`: use unix:///absolute/path")
            self._unix_path = path
            self._uri = WebSocketURI(False, "localhost", 80, "/", "", None, None)
        else:
            try:
                self._uri = parse_uri(url)
            except InvalidURI:
                text = f"invalid URL `{url}`: use ws://HOST:PORT, wss://HOST:PORT or unix:///path"
                raise ValueError(text) from None
            if self._uri.username is not None:
                raise ValueError(f"invalid URL `{url}`: pass credentials as `token`")
            if self._uri.secure:
                self._tls = _tls_context(tls)
        self._headers = list((headers or {}).items())
        if token is not None:
            token = token.strip()
            if not token or not token.isascii() or any(sign.isspace() for sign in token):
                raise ValueError("invalid token: it is empty, or has spaces or signs beyond ASCII")
            if not self._is_private():
                text = f"refusing to send the token to `{url}` in the clear: use wss://"
                raise ValueError(text)
            self._headers.append(("Authorization", f"Bearer {token}"))

    def _is_private(self) -> bool:
        """Returns whether traffic to the server is encrypted or stays on this machine."""
        if self._unix_path is not None or self._uri.secure or self._uri.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self._uri.host).is_loopback
        except ValueError:
            return False

    async def open(self) -> Link:
        opening = open_websocket(self._uri, self._headers, self._tls, self._unix_path)
        try:
            return await asyncio.wait_for(opening, CONNECT_TIMEOUT)
        except asyncio.TimeoutError:
            text = f"cannot connect to {self.name}: no answer within {CONNECT_TIMEOUT:.0f} s"
            raise TransientConnectError(text) from None
        except ConnectError as error:
            raise type(error)(f"cannot connect to {self.name}: {error}") from error.__cause__


class ProgramConnector(Connector):
    """A program that speaks the protocol on stdin and stdout, started for this client."""

    def __init__(
        self,
        argv: Sequence[Union[str, "os.PathLike[str]"]],
        env: Optional[Mapping[str, str]] = None,
        keep_errors: bool = False,
    ) -> None:
        if isinstance(argv, (str, bytes)) or not argv:
            raise ValueError("a program is a list: its name and its arguments")
        self._argv = [os.fspath(argument) for argument in argv]
        self._env: Optional[Dict[str, str]] = None if env is None else {**os.environ, **env}
        self._keep_errors = keep_errors
        self.name = self._argv[0]

    async def open(self) -> Link:
        return await open_program(self._argv, self._env, self._keep_errors)


#: Starts a server for one client on the machine behind a hub. There the parent of a command is a
#: supervisor, which is an image of the server's program.
_BRIDGED_SERVER = ["sh", "-c", 'exec "/proc/$PPID/exe" --listen stdio']


def hub_connector(
    url: str,
    environment_id: str,
    token: str,
    program: Optional[Union[str, "os.PathLike[str]"]] = None,
) -> ProgramConnector:
    """Makes a connector for a machine behind a hub.

    The program is a local bridge: it speaks Noise with the machine, and passes the protocol on.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"invalid URL of a hub `{url}`: use https://HOST")
    if not environment_id or not token.strip():
        raise ValueError("a hub needs the id of an environment, and a token")
    # The token must not be on a command line, which other accounts can read.
    variables = {
        "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL": url,
        "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID": environment_id,
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": token.strip(),
    }
    bridge = find_program() if program is None else os.fspath(program)
    # The variables name the only environment, `remote`.
    argv = [bridge, "run", "--env", "remote", "--", *_BRIDGED_SERVER]
    return ProgramConnector(argv, variables, keep_errors=True)


class LocalConnector(Connector):
    """The server of this machine on its socket, started if none listens."""

    def __init__(self, program: Optional[Union[str, "os.PathLike[str]"]] = None) -> None:
        self._program = None if program is None else os.fspath(program)
        self._socket = local_socket()
        self.name = "the server of this machine"

    async def open(self) -> Link:
        try:
            return await self._connect()
        except TransientConnectError:
            pass
        await asyncio.get_running_loop().run_in_executor(None, self._start)
        return await self._connect()

    async def _connect(self) -> Link:
        if self._socket.exists():
            await asyncio.get_running_loop().run_in_executor(None, self._check_peer)
        return await UrlConnector(f"unix://{self._socket}").open()

    def _check_peer(self) -> None:
        """Refuses a socket that another account could have made, or on which one listens."""
        directory = os.lstat(self._socket.parent)
        own = stat.S_ISDIR(directory.st_mode) and directory.st_uid == os.geteuid()
        if not own or directory.st_mode & 0o077:
            text = (
                f"cannot use `{self._socket.parent}` for the socket of this machine: "
                "make it a directory of your own with mode 0700, or set EXEC_SERVER_SOCKET"
            )
            raise ConnectError(text)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            try:
                probe.connect(str(self._socket))
            except OSError as error:
                raise TransientConnectError(str(error)) from error
            if not hasattr(socket, "SO_PEERCRED"):
                return
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            _, uid, _ = struct.unpack("3i", credentials)
            if uid not in (0, os.geteuid()):
                text = f"another account (uid {uid}) listens on `{self._socket}`"
                raise AuthenticationError(text)

    def _start(self) -> None:
        """Has the program start the server, which outlives this process."""
        program = self._program or find_program()
        # Any command for this machine starts its server, one at a time and with all checks.
        argv = [program, "run", "--env", "local", "--", "true"]
        try:
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                timeout=_START_TIMEOUT,
                check=True,
                start_new_session=True,
            )
        except OSError as error:
            raise ConnectError(f"cannot start `{program}`: {error.strerror or error}") from error
        except subprocess.TimeoutExpired:
            text = f"the server of this machine did not start within {_START_TIMEOUT:.0f} s"
            raise ConnectError(text) from None
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
            reason = lines[-1] if lines else f"exit code {error.returncode}"
            raise ConnectError(f"cannot start the server of this machine: {reason}") from None


def local_socket() -> Path:
    """Returns the path of the socket of this machine's server, as the program does."""
    named = os.environ.get("EXEC_SERVER_SOCKET", "")
    if os.path.isabs(named):
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        try:
            if os.stat(runtime).st_uid == os.geteuid() and os.path.isdir(runtime):
                return Path(runtime, "exec-server", "server.sock")
        except OSError:
            pass
    state = os.environ.get("XDG_STATE_HOME", "")
    home = os.environ.get("HOME", "")
    if os.path.isabs(state):
        return Path(state, "exec-server", "run", "server.sock")
    if os.path.isabs(home):
        return Path(home, ".local", "state", "exec-server", "run", "server.sock")
    return Path(f"/run/user/{os.geteuid()}/exec-server/server.sock")


def find_program() -> str:
    """Returns the path of the `exec-server` program.

    It is the one that `EXEC_SERVER` names, or else the one that was installed with this package, or
    else the first on the PATH.

    Raises:
        ConnectError: No program was found.
    """
    named = os.environ.get("EXEC_SERVER")
    if named:
        return named
    directories: List[str] = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    try:
        directories.append(sysconfig.get_path("scripts", f"{os.name}_user"))
    except KeyError:
        pass
    for directory in directories:
        program = os.path.join(directory, "exec-server")
        if os.access(program, os.X_OK) and os.path.isfile(program):
            return program
    found = shutil.which("exec-server")
    if found is None:
        text = (
            "no `exec-server` program: install a wheel with the program inside, put it on the "
            "PATH, or name it in the variable EXEC_SERVER"
        )
        raise ConnectError(text)
    return found


def _tls_context(tls: TlsOption) -> ssl.SSLContext:
    if isinstance(tls, ssl.SSLContext):
        return tls
    return ssl.create_default_context(cafile=None if tls is None else os.fspath(tls))
