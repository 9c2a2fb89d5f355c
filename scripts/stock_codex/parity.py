"""Both servers are asked the same: what is configured and installed, and what they refuse.

Not here: what the answers mean. Texts for people may differ, except those of `error-texts`, which
clients compare; everything else must be the same.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any, Dict, List, Tuple

from asking import Client
from model import Item
from scenarios import Run
from server import Server, clean_environment
from surface import stock_server

ANSWERS_WITHIN = 20.0

CONFIG = "environmentConfig/read"
ROOTS = "capabilityRoots/discoverV1"
INSTALLED = "capabilities/discoverV2"

SKILL = "---\nname: {0}\ndescription: about {0}\n---\n"
MANIFEST = ".codex-plugin/plugin.json"
CACHE = "user/.codex/plugins/cache"

# The files that the questions are about; `{0}` is the folder.
FILES: Dict[str, str] = {
    "user/.codex/config.toml": "model = 'u'\nprofile = 'p'\n[mcp_servers.'a.b']\nargs = ['x']\n"
    "env = {{ A = '1' }}\n[[hooks.stop]]\nc = 1\n"
    "[projects.'{0}/work/project']\ntrust_level = 'trusted'\n"
    "[projects.'{0}/work/project/sub']\ntrust_level = 'untrusted'\n",
    "work/project/.git/HEAD": "",
    "work/project/.codex/config.toml": "model = 'p'\nmodel_provider = 'x'\n",
    "work/project/sub/.codex/config.toml": "not read",
    "work/project/sub/deep/.codex/config.toml": "model = 'deep'\n",
    "work/broken/.codex/config.toml": "not read",
    "work/plugin/.codex-plugin/plugin.json": '{{"mcpServers":"./m.json","apps":"no"}}',
    "work/plugin/.claude-plugin/plugin.json": "{{}}",
    "work/plugin/m.json": "m",
    "work/plugin/.app.json": "apps",
    "work/plugin/skills/s/SKILL.md": "s",
    "work/plugin/skills/s/agents/openai.yaml": "y",
    "work/plugin/.hidden/SKILL.md": "h",
    "work/plugin/b/.cursor-plugin/plugin.json": "b",
    "work/plugin/a-b/.codex-plugin/plugin.json": "a-b",
    "work/plugin/a/.codex-plugin/plugin.json": "a",
    "work/plugin/1/2/3/4/5/6/SKILL.md": "six",
    "work/plugin/1/2/3/4/5/6/7/SKILL.md": "seven",
    "user/.codex/skills/.system/own/SKILL.md": SKILL.format("own"),
    "user/.codex/skills/colon/SKILL.md": "---\ndescription: use: with care\n---\n",
    "user/.codex/skills/broken/SKILL.md": "no front matter",
    "user/.agents/skills/short/SKILL.md": "---\ndescription: >\n  two\n  lines\nmetadata:\n"
    "  short-description: s\n---\n",
    "user/.agents/skills/short/agents/openai.yaml": "policy:\n  products: [CODEX]\n"
    "dependencies:\n  tools:\n    - type: mcp\n      value: v\n"
    "      oauth: {{callback_port: 80}}\n",
    f"{CACHE}/m/p/1.9.0/{MANIFEST}": "{{}}",
    f"{CACHE}/m/p/1.10.0/{MANIFEST}": '{{"interface":{{"displayName":"P"}}}}',
    f"{CACHE}/m/p/1.10.0/any/SKILL.md": SKILL.format("any"),
    f"{CACHE}/m/p/.codex-remote-plugin-install.json": '{{"schema_version":1,'
    '"remote_plugin_id":"r"}}',
    f"{CACHE}/m/q/local/{MANIFEST}": '{{"name":"q"}}',
    f"{CACHE}/m/q/9.0.0/{MANIFEST}": "{{}}",
    f"{CACHE}/m/wrong/1/{MANIFEST}": "[]",
}


def parity(run: Run) -> None:
    """Asks both servers about configuration, plugins and skills."""
    for name, text in FILES.items():
        path = run.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(run.folder))
    (run.folder / "work/plugin/link").symlink_to("skills")
    (run.folder / "work/plugin/binary").mkdir()
    (run.folder / "work/plugin/binary/SKILL.md").write_bytes(b"\xff")
    asked = questions(run.folder)
    requests = [(method, params) for _, method, params in asked]
    stock = answers([str(run.setup.codex), "exec-server"], run.folder, requests)
    ours = answers(run.setup.server, run.folder, requests)
    for (name, _, _), theirs, our in zip(asked, stock, ours):
        # A server that ends early answers nothing, which would be the same for both.
        theirs = "an answer" if theirs is None else theirs
        run.section.equal(f"{name}, as the CLI's own server answers", our, theirs)


def questions(folder: Path) -> List[Tuple[str, str, Item]]:
    """Returns what is asked: a name for people, the method and its parameters."""

    def uri(name: str) -> str:
        return (folder / name).as_uri()

    def config(cwd: str, *keys: List[str]) -> Item:
        return {"cwd": uri(cwd), "configPaths": list(keys), "requirementsPaths": [["models"]]}

    def roots(*names: str) -> Item:
        return {"roots": [{"id": name, "path": uri(name)} for name in names]}

    keys = [["model"], ["model_provider"], ["mcp_servers", "a.b", "env"], ["hooks", "stop", "0"]]
    return [
        ("configuration of the account", CONFIG, config("none", *keys)),
        ("parts that are not there", CONFIG, config("none", ["mcp_servers", "no"], ["no"])),
        ("a trusted project", CONFIG, config("work/project", *keys)),
        ("a part that is not trusted", CONFIG, config("work/project/sub/deep", *keys)),
        ("a project that nobody trusts", CONFIG, config("work/broken", *keys)),
        ("no keys", CONFIG, config("work") | {"requirementsPaths": []}),
        ("an empty key", CONFIG, config("work", [])),
        ("a plugin", ROOTS, roots("work/plugin")),
        ("roots in it", ROOTS, roots("work/plugin/skills", "work/plugin/a", "work/plugin/m.json")),
        ("roots around it", ROOTS, roots("work", "none")),
        ("too many roots", ROOTS, roots(*["none"] * 129)),
        ("what is installed", INSTALLED, {"cwd": uri("work")}),
    ]


def answers(command: List[str], folder: Path, asked: List[Tuple[str, Item]]) -> List[Any]:
    """Returns what a server answers on its standard output, without the texts for people."""
    calls: List[Tuple[str, Item]] = [("initialize", {"clientName": "parity"}), *asked]
    messages = [
        {"id": number, "method": method, "params": params}
        for number, (method, params) in enumerate(calls)
    ]
    messages.insert(1, {"method": "initialized", "params": {}})
    environment = clean_environment(folder)
    environment["HOME"] = str(folder / "user")
    with (folder / "parity.log").open("ab") as log, subprocess.Popen(
        [*command, "--listen", "stdio"],
        cwd=folder / "host",
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
    ) as server:
        assert server.stdin and server.stdout
        found: Dict[int, Any] = {}
        for message in messages:
            server.stdin.write(json.dumps(message).encode() + b"\n")
            server.stdin.flush()
            while "id" in message and message["id"] not in found:
                line = server.stdout.readline()
                if not line:
                    break
                answer = json.loads(line)
                found[answer.get("id", -1)] = plain(answer.get("result", answer.get("error")))
        server.stdin.close()
        try:
            server.wait(ANSWERS_WITHIN)
        except subprocess.TimeoutExpired:
            server.kill()
    return [found.get(number) for number in range(1, len(calls))]


def plain(value: Any) -> Any:
    """Leaves out what is for people: of warnings the number remains, of errors the code."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "code" in value and "message" in value:
        return value["code"]
    texts = {"warnings": len, "error": lambda text: text is not None}
    return {name: texts.get(name, plain)(each) for name, each in value.items()}


def error_texts(run: Run) -> None:
    """Asks both servers for what they refuse: code and text are the same."""
    work = run.folder / "work"
    (work / "directory" / "sub").mkdir(parents=True)
    (work / "link").symlink_to("directory")
    os.mkfifo(work / "fifo")
    endless = Endless()
    try:
        with stock_server(run) as stock, run.server() as ours:
            theirs = refusals(stock, work, endless.port)
            our = refusals(ours, work, endless.port)
    finally:
        endless.close()
    for name, refusal in theirs.items():
        run.section.equal(f"{name} is refused as by the CLI's own server", our[name], refusal)


class Endless:
    """Answers every HTTP request with a head, and with a body that does not come."""

    def __init__(self) -> None:
        self._open: List[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Drops everybody."""
        for each in (self._listener, *self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
            except OSError:
                return


def refusals(server: Server, work: Path, endless: int) -> Dict[str, Any]:
    """Returns the code and text of every refusal, without what differs by connection."""
    client = Client(server.port)
    try:
        client.initialize()
        found: Dict[str, Any] = {}
        for name, method, params in refused_requests(work, endless):
            found[name] = client.ask(method, params).get("error")
        for text in MALFORMED:
            client.send(text.encode())
            refusal = client.receive()
            peer = "%s:%d" % client.address()
            refusal["error"]["message"] = refusal["error"]["message"].replace(peer, "PEER")
            found[f"malformed JSON `{text}`"] = refusal
        return found
    finally:
        client.close()


MALFORMED = ("{bad", "not json", "", '{"id":1', '{"id":1,"id":2,"method":"x"}', "[]", "5")


def refused_requests(work: Path, endless: int) -> List[Tuple[str, str, Item]]:
    """Returns what is refused: a name for people, the method and its parameters."""

    def copy(source: str, destination: str, recursive: bool) -> Item:
        paths = {"sourcePath": source, "destinationPath": destination}
        uris = {name: (work / path).as_uri() for name, path in paths.items()}
        return {**uris, "recursive": recursive}

    def http(**change: Any) -> Item:
        fine = {"method": "GET", "url": f"http://127.0.0.1:{endless}/", "requestId": "r"}
        return {**fine, "timeoutMs": 1000, **change}

    def header(name: str, value: str, variable: Any = None) -> Item:
        return http(headers=[{"name": name, "value": value, "valueEnvVar": variable}])

    streamed = http(streamResponse=True, timeoutMs=20000)
    cwd = work.as_uri()
    none = {"cwd": cwd, "configPaths": [], "requirementsPaths": []}
    asked = [
        ("a configuration without selectors", CONFIG, none),
        ("an empty selector", CONFIG, {**none, "configPaths": [[]]}),
        ("an empty selector of requirements", CONFIG, {**none, "requirementsPaths": [[]]}),
        ("a copy of a FIFO", COPY, copy("fifo", "new", False)),
        ("a copy of a directory", COPY, copy("directory", "new", False)),
        ("a copy into itself", COPY, copy("directory", "directory", True)),
        ("a copy into a descendant", COPY, copy("directory", "directory/sub/new", True)),
        ("a copy into a descendant by a link", COPY, copy("directory", "link/sub/new", True)),
        ("a copy without `recursive`", COPY, {"sourcePath": cwd, "destinationPath": cwd}),
    ]
    for timeout in (-1, 1.5, "5", True, 0):
        asked.append((f"a timeout of {timeout!r}", HTTP, http(timeoutMs=timeout)))
    for variable in ("OPENAI_API_KEY", "openai_api_key", "UNSET_BY_ALL"):
        name = f"a header of the variable {variable}"
        asked.append((name, HTTP, header("a", "x", variable)))
    asked += [
        ("a header with a bad name", HTTP, header("a b", "x")),
        ("a header with a bad value", HTTP, header("a", "x\ny")),
        ("a URL without a scheme", HTTP, http(url="nowhere")),
        ("a URL of another scheme", HTTP, http(url="ftp://127.0.0.1/")),
        ("a bad method", HTTP, http(method="GET IT")),
        # The first is not refused by either server.
        ("the stream that uses an id", HTTP, streamed),
        ("another stream with that id", HTTP, streamed),
    ]
    return asked


COPY = "fs/copy"
HTTP = "http/request"
ALL = {"parity": parity, "error-texts": error_texts}
