"""The ways in which the CLI reaches our server; each is one server and one run of the CLI.

Not here: the commands that are run (`conversations`).
"""

from __future__ import annotations

import hashlib
import json
import secrets
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import cli
from binaries import CACHE, executable_of
from conversations import ANSWER, Talk
from members import Members
from model import Conversation, Item, Model
from proxy import Observer, Proxy, Trace
from report import Report
from server import NONCE, Server

# A model of the CLI's own catalogue whose only way to a shell is code mode.
CODE_MODEL = "gpt-6.1-sol"


@dataclass
class Setup:
    """What all scenarios share."""

    codex: Path
    # Its release.
    version: Tuple[int, ...]
    # The command of the server, before its flags.
    server: List[str]
    # Our program, which is the hub whatever the server is.
    ours: Path
    report: Report
    trace: Optional[Trace]
    members: Members


class Run:
    """One scenario: its folder, its section of the report and its secrets."""

    def __init__(self, setup: Setup, name: str) -> None:
        self.setup = setup
        self.name = name
        self.section = setup.report.section(name)
        self.nonce = secrets.token_hex(8)
        # Below the cache and not in a system temporary directory, where the CLI does without its
        # helpers and warns.
        CACHE.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"run-{name}-", dir=CACHE))
        for part in ("home", "user", "work", "host"):
            (self.folder / part).mkdir()
        self.talk = Talk(self.section, self.nonce, self.folder / "work")

    def converse(
        self,
        conversation: Callable[[Item], Conversation],
        home: cli.Home,
        url: Optional[str] = None,
        variables: Optional[Dict[str, str]] = None,
    ) -> None:
        """Runs the CLI through `conversation` and checks that both come to their end."""
        variables = {**(variables or {})}
        if url is not None:
            variables["CODEX_EXEC_SERVER_URL"] = url
        model = Model(conversation)
        try:
            home.write(self.folder, model.port)
            ended = cli.run(self.setup.codex, self.folder, model.port, variables, home)
        finally:
            model.close()
        ended.save(model)
        failure = f"{type(model.failure).__name__}: {model.failure}" if model.failure else None
        got = (ended.status, ended.answer(), failure)
        expected = (0, ANSWER, None)
        detail = f"expected {expected}\ngot      {got}\n{ended.tail()}"
        self.section.check("the CLI ends with the model's answer", got == expected, detail)

    @contextmanager
    def server(self, *flags: str) -> Iterator[Server]:
        """Starts our server, and checks in the end that it kept to its command line."""
        server = Server([*self.setup.server, *flags], self.nonce, self.folder)
        try:
            yield server
        finally:
            got = (server.stop(), len(server.lines))
            self.section.equal("the server ends with 0 after one line on stdout", got, (0, 1))

    @contextmanager
    def front(self, server: Server, *observers: Observer) -> Iterator[Proxy]:
        """Puts a proxy before the server."""
        trace = [self.setup.trace.line] if self.setup.trace else []
        proxy = Proxy(
            self.name, server.port, [*trace, self.setup.members.of_client, *observers]
        )
        try:
            yield proxy
        finally:
            proxy.close()

    @contextmanager
    def port(self, server: Server) -> Iterator[int]:
        """Gives the port of a proxy, which records the messages of the CLI."""
        with self.front(server) as proxy:
            yield proxy.port


def websocket(run: Run) -> None:
    """`CODEX_EXEC_SERVER_URL`, and every kind of command."""
    with run.server() as server, run.port(server) as port:
        run.converse(run.talk.everything, cli.Home(), url_of(port))


def stock_wire(run: Run) -> None:
    """The CLI and its own server: what both of them send is recorded."""
    command = [str(executable_of(run.setup.codex)), "exec-server"]
    server = Server(command, run.nonce, run.folder)
    try:
        with run.front(server, run.setup.members.of_both) as proxy:
            run.converse(run.talk.everything, cli.Home(), url_of(proxy.port))
    finally:
        server.stop()


def code(run: Run) -> None:
    """A current model, which runs its commands from JavaScript cells (code mode)."""
    home = cli.Home(model=CODE_MODEL)
    with run.server() as server, run.port(server) as port:
        run.converse(run.talk.in_code_mode, home, url_of(port))


def snapshot(run: Run) -> None:
    """The shell snapshots that a coming CLI asks for, with a profile to take them of."""
    asked: List[str] = []

    def observe(source: str, text: str) -> None:
        if source.endswith("->") and '"shellSnapshot":{' in text:
            asked.append(text)

    run.talk.write_profile(run.folder / "user")
    home = cli.Home(features="shell_snapshot_v2 = true")
    with run.server() as server, run.front(server, observe) as proxy:
        run.converse(run.talk.profile, home, url_of(proxy.port))
        run.section.check("the CLI asks for shell snapshots", bool(asked), "no shellSnapshot sent")


def cut(run: Run) -> None:
    """The connection breaks while a command writes, and the CLI resumes its session."""
    with run.server() as server, run.front(server) as proxy:
        run.converse(run.talk.through_a_cut(proxy.cut), cli.Home(), url_of(proxy.port))
        run.section.equal("the CLI came back once", proxy.connections, 2)


def token(run: Run) -> None:
    """`environments.toml` with a bearer token, to a server that wants one."""
    secret = secrets.token_urlsafe(24)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    flags = ("--ws-auth", "capability-token", "--ws-token-sha256", digest)
    with run.server(*flags) as server, run.port(server) as port:
        fields = {"url": url_of(port), "auth_bearer_token": secret}
        run.converse(run.talk.basics, cli.Home(environments=environments_toml(fields)))


def stdio(run: Run) -> None:
    """`environments.toml` with our server as a program that the CLI starts itself."""
    run.converse(run.talk.basics, cli.Home(environments=program_toml(run)))


def program_toml(run: Run) -> str:
    """Returns an `environments.toml` by which the CLI starts the server itself."""
    fields = {
        "program": run.setup.server[0],
        "args": [*run.setup.server[1:], "--listen", "stdio"],
        "cwd": str(run.folder / "host"),
    }
    return environments_toml(fields) + f"env = {{ {NONCE} = {json.dumps(run.nonce)} }}\n"


def url_of(port: int) -> str:
    """Returns the URL of a port of this machine."""
    return f"ws://127.0.0.1:{port}"


def environments_toml(fields: dict) -> str:
    """Returns an `environments.toml` with ours only; JSON strings and lists are TOML as well."""
    lines = ['default = "ours"', "include_local = false", "[[environments]]", 'id = "ours"']
    lines += [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(lines) + "\n"


ALL = {
    each.__name__.replace("_", "-"): each
    for each in (websocket, stock_wire, code, snapshot, cut, token, stdio)
}
