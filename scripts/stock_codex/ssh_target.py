"""The CLI on a place that it reaches over ssh: `program = "exec-server connect ssh:box"`.

The host is a real `sshd` on loopback. Its forced command gives the account an empty home, so that
each scenario starts where our program has never been.
Not here: the commands that are run (`conversations`).
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional

import cli
from file_conversations import Files
from file_scenarios import TOOL_MODEL
from project import SharedProject
from proxy import Proxy
from scenarios import Run, environments_toml
from server import NONCE, STARTS_WITHIN, STOPS_WITHIN, StartFailed
from wire import Wire

SSHD = Path("/usr/sbin/sshd")
# Seconds after which the server on the host exits when it has nothing to do.
IDLE_EXIT = 5

SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {root}/host_key
AuthorizedKeysFile {root}/authorized_keys
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
PermitRootLogin yes
ForceCommand {root}/login
"""

# `sshd` starts it instead of the command that the client asks for.
LOGIN = """\
#!/bin/sh
unset XDG_RUNTIME_DIR XDG_CACHE_HOME XDG_STATE_HOME
export HOME={root}/home EXEC_SERVER_IDLE_EXIT={idle} {nonce}={value}
echo 'Welcome to this machine'
cd "$HOME"
exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"
"""

CLIENT_CONFIG = """\
Host box
HostName 127.0.0.1
Port {port}
User {user}
HostKeyAlias box
IdentityFile {root}/user_key
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile {root}/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
"""


class SshHost:
    """A running `sshd` below the folder of a scenario."""

    def __init__(self, run: Run) -> None:
        if not SSHD.exists() or shutil.which("ssh") is None:
            raise StartFailed("OpenSSH is missing: install openssh-server and openssh-client")
        self._root = run.folder / "ssh"
        (self._root / "home").mkdir(parents=True)
        for key in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._root / key)]
            subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
        shutil.copy(self._root / "user_key.pub", self._root / "authorized_keys")
        host_key = (self._root / "host_key.pub").read_text(encoding="utf-8")
        self._write("known_hosts", f"box {host_key}")
        login = LOGIN.format(root=self._root, idle=IDLE_EXIT, nonce=NONCE, value=run.nonce)
        self._write("login", login).chmod(0o755)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        # Another program may take the port in between; then `sshd` fails, and so does the scenario.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        config = self._write("sshd_config", SSHD_CONFIG.format(root=self._root, port=self.port))
        self._sshd = subprocess.Popen(
            [str(SSHD), "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._listening = threading.Event()
        self._log = (self._root / "sshd.log").open("w", encoding="utf-8")
        threading.Thread(target=self._read, daemon=True).start()
        if not self._listening.wait(STARTS_WITHIN):
            self.stop()
            raise StartFailed(f"sshd does not listen; see {self._root / 'sshd.log'}")

    def environments(self, run: Run, port: Optional[int] = None) -> str:
        """Returns an `environments.toml` whose program connects to the host, or to a proxy of it."""
        config = CLIENT_CONFIG.format(
            root=self._root, port=port or self.port, user=getpass.getuser()
        )
        ssh = f"ssh -F {self._write('ssh_config', config)}"
        fields = {
            "program": str(run.setup.ours),
            "args": ["connect", "ssh:box"],
            "cwd": str(run.folder / "host"),
            "initialize_timeout_sec": 60,
        }
        variables = f'env = {{ EXEC_SERVER_SSH = "{ssh}", HOME = "{run.folder / "user"}" }}\n'
        return environments_toml(fields) + variables

    def pushed(self) -> int:
        """Returns how many copies of our program are in the account."""
        programs = self._root.glob("home/.cache/exec-server/exec-server-*")
        return sum(1 for program in programs if os.access(program, os.X_OK))

    def stop(self) -> None:
        """Ends `sshd`; the server of the account exits by itself when it is idle."""
        self._sshd.terminate()
        self._sshd.wait(STOPS_WITHIN)

    def _write(self, name: str, text: str) -> Path:
        path = self._root / name
        path.write_text(text, encoding="utf-8")
        return path

    def _read(self) -> None:
        for line in self._sshd.stderr or ():
            self._log.write(line)
            self._log.flush()
            if "Server listening on" in line:
                self._listening.set()
        self._log.close()


def connect_ssh(run: Run) -> None:
    """Every kind of command, on a host where our program has never been."""
    with host_of(run) as host:
        run.converse(run.talk.everything, cli.Home(environments=host.environments(run)))
        run.section.equal("our program was pushed once", host.pushed(), 1)


def connect_ssh_files(run: Run) -> None:
    """Instructions, patches and an image on such a host."""
    with host_of(run) as host:
        files = Files(run.section, run.nonce, SharedProject(run.folder), Wire())
        files.write_instructions()
        files.write_sources()
        files.write_image()
        home = cli.Home(model=TOOL_MODEL, environments=host.environments(run))
        run.converse(files.basics, home)


def connect_ssh_cut(run: Run) -> None:
    """The ssh connection breaks while a command writes; the CLI sees one unbroken link."""
    with host_of(run) as host:
        proxy = Proxy(run.name, host.port, [])
        try:
            home = cli.Home(environments=host.environments(run, proxy.port))
            run.converse(run.talk.through_a_cut(proxy.cut), home)
            name = "a second ssh connection replaced the first"
            run.section.check(name, proxy.connections >= 2, f"{proxy.connections} connections")
        finally:
            proxy.close()


@contextmanager
def host_of(run: Run) -> Iterator[SshHost]:
    """Starts a host, and ends it after the scenario."""
    host = SshHost(run)
    try:
        yield host
    finally:
        host.stop()


ALL = {
    each.__name__.replace("_", "-"): each
    for each in (connect_ssh, connect_ssh_files, connect_ssh_cut)
}
