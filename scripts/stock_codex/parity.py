"""What is configured and installed: both servers are asked the same about the same files.

Not here: what the answers mean. Texts for people may differ; everything else must be the same.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Tuple

from model import Item
from scenarios import Run
from server import clean_environment

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


ALL = {"parity": parity}
