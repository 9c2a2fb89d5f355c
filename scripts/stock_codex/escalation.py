"""A command that the person lets out of its sandbox, under a profile that denies a read.

The CLI sends such a command only to a server that announces
`linuxApprovedRootWritePreservesRestrictions`: it may write everywhere, and what is denied stays so.
Not here: how the CLI is run (`app_server`).
"""

from __future__ import annotations

import json
from typing import Any, Dict, List

import cli
from app_server import AppServer
from conversations import ANSWER
from model import Conversation, Item, Model
from scenarios import Run, url_of
from tools import Shell, offered_tools
from wire import Wire

# Everything may be read except one file; the workspace may be written.
PROFILE = """
default_permissions = "guarded"

[permissions.guarded.filesystem]
":root" = "read"
{denied} = "deny"

[permissions.guarded.filesystem.":workspace_roots"]
"." = "write"
"""
OVERRIDE = "escalatedSandboxWithRestrictions"


def escalation(run: Run) -> None:
    """An approved command writes outside of the workspace, and cannot read what is denied."""
    outside = run.folder / "outside"
    outside.mkdir()
    secret = outside / "secret"
    secret.write_text("the secret\n", encoding="utf-8")
    target = outside / "written"
    script = f"echo out > {target} && cat {target}; cat {secret}"
    wire = Wire()
    told: List[str] = []
    approvals: List[Dict[str, Any]] = []

    def conversation(request: Item) -> Conversation:
        shell = Shell(offered_tools(request))
        permission = {"sandbox_permissions": "require_escalated", "justification": "to write"}
        result = yield from shell.run(script, **permission)
        told.append(result.text)
        return ANSWER

    def approve(method: str, params: Dict[str, Any]) -> Dict[str, Any]:
        approvals.append({"method": method, **params})
        return {"decision": "accept"}

    model = Model(conversation)
    try:
        with run.server() as server, run.front(server, wire.observe) as proxy:
            cli.Home().write(run.folder, model.port)
            config = run.folder / "home" / "config.toml"
            profile = PROFILE.format(denied=json.dumps(str(secret)))
            head, table, rest = config.read_text(encoding="utf-8").partition("\n[analytics]")
            first, _, tables = profile.partition("\n\n")
            config.write_text(f"{head}{first}\n{table}{rest}\n{tables}", encoding="utf-8")
            variables = {"CODEX_EXEC_SERVER_URL": url_of(proxy.port)}
            app = AppServer(run.setup.codex, run.folder, model.port, variables)
            try:
                thread = {"cwd": str(run.folder / "work"), "approvalPolicy": "on-request"}
                completed = app.run_turn(thread, approve)
            finally:
                app.stop()
    finally:
        model.close()
        log = {"approvals": approvals, "told": told, "messages": app.messages}
        (run.folder / "escalation.json").write_text(json.dumps(log, indent=1), encoding="utf-8")
    run.section.check("the turn comes to its end", completed is not None, str(app.messages[-3:]))
    failure = str(model.failure) if model.failure else None
    run.section.equal("so does the conversation", failure, None)
    asked = [each["method"] for each in approvals]
    expected = ["item/commandExecution/requestApproval"]
    run.section.equal("the person is asked once", asked, expected)
    starts = [call for call in wire.calls("process/start") if script in call.params["argv"]]
    run.section.equal("the approved command is sent", len(starts), 1)
    for start in starts:
        override = (start.params.get("sandbox") or {}).get("sandboxOverride")
        run.section.equal("with its restrictions", override, OVERRIDE)
    text = "\n".join(told)
    run.section.check("the command writes outside of the workspace", target.exists(), text)
    refused = "the secret" not in text and "Permission denied" in text
    run.section.check("what is denied cannot be read", refused, text)


ALL = {"escalation": escalation}
