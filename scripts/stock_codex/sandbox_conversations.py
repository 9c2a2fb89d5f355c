"""What the scripted model tries in a sandbox, what must work and what must be refused.

Each conversation is a generator for `model.Model`. What is refused is looked at from three sides:
what the model is told, what the wire carried, what is on the disk and who was connected to.
Not here: which sandbox the CLI asks for (`sandbox_scenarios`); files by `fs/*`
(`file_conversations`).
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import List, Set, Tuple

from conversations import ANSWER, Talk
from loopback import GREETING, PORT, Loopback, fetch
from model import Conversation, Item
from report import Section
from tools import Shell, Step, offered_tools
from wire import Wire, comes_true

READ_ONLY = "Read-only file system"
NOTICED_WITHIN = 5.0
# What the CLI protects in a writable root, whether it is there or not.
METADATA = (".git", ".codex", ".agents")
INVALID = (-32601, -32602)
# A host that no list names, and that no name server knows.
UNLISTED = "unlisted.invalid"


class Sandboxed:
    """What these conversations need: where to report, the disk, the wire and the network."""

    def __init__(self, section: Section, talk: Talk, outside: Path, wire: Wire) -> None:
        self.section = section
        self.wire = wire
        self.loopback = Loopback()
        self._talk = talk
        self._work = talk.work
        # A folder beside the work directory, in no place that a policy makes writable.
        self._outside = outside
        (outside / "file").write_text("outside", encoding="utf-8")
        (self._work / "file").write_text("inside", encoding="utf-8")

    def workspace(self, request: Item) -> Conversation:
        """Runs commands of every kind where the work directory is writable, and nothing else."""
        (self._work / ".git").mkdir()
        shell = Shell(offered_tools(request))
        yield from self._talk.commands(shell)
        yield from self._reads(shell)
        yield from self._no_write_outside(shell)
        yield from self._temporary(shell)
        command = "mkdir .git/x"
        yield from self._denied(shell, "the project's .git cannot be written", command, READ_ONLY)
        yield from self._no_network(shell)
        yield from self._background(shell)
        self._all_in_sandbox()
        return ANSWER

    def in_code_mode(self, request: Item) -> Conversation:
        """Runs a few from the JavaScript cells that the model may use instead of tools."""
        names = [tool.get("name") for tool in offered_tools(request)]
        self.section.check("the CLI offers JavaScript cells", "exec" in names, f"only {names}")
        shell = Shell(offered_tools(request))
        yield from self._talk.few_commands(shell)
        yield from self._reads(shell)
        yield from self._no_write_outside(shell)
        yield from self._no_network(shell)
        self._all_in_sandbox()
        return ANSWER

    def interrupted(self, request: Item) -> Conversation:
        """Interrupts commands: the signal is for them, not for what confines them."""
        yield from self._talk.interrupts(Shell(offered_tools(request)))
        self._all_in_sandbox()
        return ANSWER

    def metadata(self, request: Item) -> Conversation:
        """Tries to make what is protected and missing; meanwhile nothing may stand in for it."""
        shell = Shell(offered_tools(request))
        before = names_in(self._work)
        for name in METADATA:
            command = f"mkdir {name}"
            yield from self._denied(shell, f"{name} cannot be made", command, READ_ONLY)
        for what, command in (
            ("by a file", "echo x > .codex"),
            ("by a link", "ln -s . .agents"),
            ("by a hard link", "ln file .git"),
            ("by a rename", "mv file .git"),
        ):
            yield from self._denied(shell, f"nor {what}", command, READ_ONLY)
        self.section.equal("nothing was made and nothing moved", names_in(self._work), before)
        command = "mkdir -p sub/.git && ls -A sub && rmdir sub/.git sub"
        result = yield from shell.run(command)
        got = (result.output, result.exit_code)
        self.section.equal("in a folder below, it can be made", got, (".git\n", 0))
        script = "ls -A; while [ ! -e go ]; do sleep 0.1; done; exit 6"
        result = yield from shell.start(script, yield_time_ms=1000)
        running = result.session is not None
        self.section.check("a command runs on", running, result.text)
        self.section.equal("the user's folder is as before", names_in(self._work), before)
        (self._work / "go").touch()
        result = yield from shell.finish(result)
        got = (sorted(result.output.split()), result.exit_code)
        self.section.equal("so is what the command sees of it", got, (before, 6))
        self.section.equal("nothing is left behind", names_in(self._work), sorted([*before, "go"]))
        self._all_in_sandbox()
        return ANSWER

    def read_only(self, request: Item) -> Conversation:
        """Runs commands that may only read."""
        shell = Shell(offered_tools(request))
        before = names_in(self._work)
        yield from self._talk.few_commands(shell)
        yield from self._reads(shell)
        for what, command in (
            ("a new file", "echo x > new"),
            ("a change", "echo x >> file"),
            ("a folder", "mkdir .git"),
            ("a removal", "rm file"),
            ("a temporary file", f"echo x > /tmp/{self._talk.nonce}"),
        ):
            yield from self._denied(shell, f"{what} is refused", command, READ_ONLY)
        yield from self._no_write_outside(shell)
        self.section.equal("the work directory is as before", names_in(self._work), before)
        content = (self._work / "file").read_text(encoding="utf-8")
        self.section.equal("so is the file in it", content, "inside")
        yield from self._no_network(shell)
        self._all_in_sandbox()
        return ANSWER

    def network(self, request: Item) -> Conversation:
        """Connects where the policy leaves the network alone; files are guarded as ever."""
        shell = Shell(offered_tools(request))
        for name, command in self.loopback.direct.items():
            result = yield from shell.run(command)
            got = (result.output, result.exit_code)
            self.section.equal(f"a command connects to {name}", got, (f"{GREETING}\n", 0))
        reached = sorted(self.loopback.reached)
        self.section.equal("both were reached", reached, sorted(self.loopback.direct))
        yield from self._no_write_outside(shell)
        self._all_in_sandbox()
        return ANSWER

    def proxied(self, request: Item) -> Conversation:
        """Connects where only a proxy with a list of hosts leads out: 127.0.0.1 is on it."""
        shell = Shell(offered_tools(request))
        for what, command in self.loopback.proxied.items():
            result = yield from shell.run(command)
            got = (result.output, result.exit_code)
            name = f"the proxy takes {what} to a host on the list"
            self.section.equal(name, got, (f"{GREETING}\n", 0))
        self.section.equal("both arrived", self.loopback.reached, [PORT, PORT])
        result = yield from shell.run(fetch(f"http://{UNLISTED}/"))
        refused = result.output.startswith("403 ") and "not_allowed" in result.output
        self.section.check("it refuses a host that is not", refused, result.text)
        for name, command in self.loopback.direct.items():
            yield from self._no_connection(shell, name, command)
        self.section.equal("only the proxy led out", self.loopback.reached, [PORT, PORT])
        self._all_by_proxy()
        yield from self._no_write_outside(shell)
        self._all_in_sandbox()
        return ANSWER

    def _reads(self, shell: Shell) -> Step:
        result = yield from shell.run("cat file ../outside/file")
        got = (result.output, result.exit_code)
        self.section.equal("inside and outside can be read", got, ("insideoutside", 0))

    def _no_write_outside(self, shell: Shell) -> Step:
        for what, command in (
            ("a file", "echo x > ../outside/new"),
            ("a change", f"echo x >> {self._outside}/file"),
            ("a change in the home", 'echo x > "$HOME/new"'),
        ):
            yield from self._denied(shell, f"{what} outside is refused", command, READ_ONLY)
        content = (self._outside / "file").read_text(encoding="utf-8")
        home = names_in(self._outside.parent / "user")
        got = (names_in(self._outside), content, "new" in home)
        self.section.equal("nothing changed there", got, (["file"], "outside", False))

    def _temporary(self, shell: Shell) -> Step:
        name = f"/tmp/{self._talk.nonce}"
        result = yield from shell.run(f"echo temporary > {name} && cat {name} && rm {name}")
        got = (result.output, result.exit_code)
        self.section.equal("temporary files can be written", got, ("temporary\n", 0))

    def _no_network(self, shell: Shell) -> Step:
        for name, command in self.loopback.direct.items():
            yield from self._no_connection(shell, name, command)
        self.section.equal("nothing was reached", self.loopback.reached, [])

    def _no_connection(self, shell: Shell, name: str, command: str) -> Step:
        result = yield from shell.run(command)
        refused = result.exit_code == 1 and "Error: " in result.output
        self.section.check(f"a command cannot connect to {name}", refused, result.text)

    def _background(self, shell: Shell) -> Step:
        # The pipe hangs up as soon as no process has it open for writing.
        gate = self._work / "gate"
        os.mkfifo(gate)
        reader = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
        try:
            left = "sleep 600 </dev/null >/dev/null 2>&1 & echo left"
            result = yield from shell.run(f"exec 3>gate; {left}; exit 5")
            got = (result.output, result.exit_code)
            self.section.equal("a command leaves a process behind", got, ("left\n", 5))
            poll = select.poll()
            poll.register(reader, 0)
            ended = bool(poll.poll(NOTICED_WITHIN * 1000))
            self.section.check("it ends with the command", ended, "it still runs")
        finally:
            os.close(reader)

    def _denied(self, shell: Shell, name: str, command: str, message: str) -> Step:
        result = yield from shell.run(command)
        told = message in result.output and result.exit_code not in (0, None)
        comes_true(lambda: self.wire.exited(command) is not None, NOTICED_WITHIN)
        end = self.wire.exited(command) or {}
        good = told and end.get("sandboxDenied") is True
        self.section.check(name, good, f"no `{message}` as sandboxDenied: {result.text}\n{end}")

    def _all_by_proxy(self) -> None:
        """Checks that the CLI left the proxy to the server, and was told what it decided."""
        starts = self.wire.calls("process/start")
        asked = [bool((call.params.get("networkProxy") or {}).get("proxy")) for call in starts]
        enforced = [call.params.get("enforceManagedNetwork") for call in starts]
        every = [True for _ in starts]
        self.section.equal("every command was given a proxy", (asked, enforced), (every, every))
        expected = {("127.0.0.1", "allow"), (UNLISTED, "deny")}

        def told() -> Set[Tuple[str, str]]:
            events = self.wire.events("network/policyDecision")
            return {(each["host"], each["decision"]) for each in events}

        comes_true(lambda: told() == expected, NOTICED_WITHIN)
        self.section.equal("the CLI was told of each decision", told(), expected)

    def _all_in_sandbox(self) -> None:
        """Checks what was asked for and answered over the whole conversation."""
        starts = self.wire.calls("process/start")
        done = [call for call in starts if call.result is not None]
        without = [call.params.get("argv") for call in starts if not call.params.get("sandbox")]
        name = "every command was asked for with a policy"
        self.section.check(name, bool(starts) and not without, f"{without} of {len(starts)}")
        kinds = {call.result.get("sandboxType") for call in done}
        self.section.equal("each ran in a sandbox", kinds, {"linuxSeccomp"})
        invalid = [call for call in self.wire.calls() if call.code in INVALID]
        lines = [f"{call.method}: {call.answer}" for call in invalid[:5]]
        self.section.check("no call was invalid or unknown", not invalid, "\n".join(lines))


def names_in(folder: Path) -> List[str]:
    """Returns what a folder has, hidden names included."""
    return sorted(os.listdir(folder))
