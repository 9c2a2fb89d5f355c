"""What the scripted model asks for, and what must come back.

Each conversation is a generator for `model.Model`. Commands are POSIX shell, so that they run
under whatever login shell the server reports.
Not here: how the CLI reaches the server (`scenarios`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable

from cli import CLI_ONLY
from model import Conversation, Item
from report import Section, shorten
from server import NONCE
from tools import Result, Shell, Step, offered_tools

ANSWER = "the script is at its end"
PROFILE = """\
export PROFILE_VARIABLE="it's set"
greet() { echo "hello, $1"; }
"""


class Talk:
    """What a conversation needs: where to report, and what the server's host looks like."""

    def __init__(self, section: Section, nonce: str, work: Path) -> None:
        self.section = section
        self.nonce = nonce
        self.work = work

    def everything(self, request: Item) -> Conversation:
        """Runs commands of every kind that the CLI offers."""
        shell = Shell(offered_tools(request))
        self.section.check(f"the CLI offers a shell tool ({shell.name})", True)
        yield from self.commands(shell)
        if shell.interactive:
            yield from self.interrupts(shell)
        return ANSWER

    def commands(self, shell: Shell) -> Step:
        """Runs commands of every kind by a tool that is chosen already, and interrupts none."""
        yield from self._where(shell)
        yield from self._isolated(shell)
        yield from self._streams(shell)
        yield from self._codes(shell)
        yield from self._long(shell)
        yield from self._files(shell)
        yield from self._parallel(shell)
        if shell.interactive:
            yield from self._slow(shell)
            yield from self._terminal(shell)
            yield from self._refused(shell)

    def interrupts(self, shell: Shell) -> Step:
        """Interrupts a command that catches it, on a terminal and on pipes."""
        script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
        for tty, where, end in ((True, "on a terminal", "\r\n"), (False, "on pipes", "\n")):
            result = yield from shell.start(script, tty=tty, yield_time_ms=1000)
            result = yield from shell.until(result, f"ready{end}")
            if result.session is None:
                self.section.check(f"a command {where} runs until ^C", False, result.text)
                continue
            result = yield from shell.write(result.session, "\x03")
            result = yield from shell.finish(result)
            caught = f"^Ccaught{end}" if tty else f"caught{end}"
            self._result(f"^C interrupts a command {where}", result, caught, 9)

    def in_code_mode(self, request: Item) -> Conversation:
        """Runs the same from the JavaScript cells that the model may use instead of tools."""
        names = [tool.get("name") for tool in offered_tools(request)]
        self.section.check("the CLI offers JavaScript cells", "exec" in names, f"only {names}")
        return (yield from self.everything(request))

    def basics(self, request: Item) -> Conversation:
        """Runs a few commands: enough to tell that the way to the server works."""
        yield from self.few_commands(Shell(offered_tools(request)))
        return ANSWER

    def few_commands(self, shell: Shell) -> Step:
        """Runs a few commands by a tool that is chosen already."""
        yield from self._where(shell)
        yield from self._streams(shell)
        yield from self._long(shell)
        if shell.interactive:
            yield from self._terminal(shell)

    def write_profile(self, user: Path) -> None:
        """Writes what a login shell of the server reads, for `profile` to find."""
        (user / ".profile").write_text(PROFILE, encoding="utf-8")

    def profile(self, request: Item) -> Conversation:
        """Runs commands that need what a login shell has read."""
        shell = Shell(offered_tools(request))
        for time in ("first", "second", "third"):
            result = yield from shell.run('greet "$PROFILE_VARIABLE"')
            name = f"the {time} command has the profile's function and variable"
            self._result(name, result, "hello, it's set\n", 0)
        yield from self._where(shell)
        yield from self._streams(shell)
        return ANSWER

    def through_a_cut(self, cut: Callable[[float], None]) -> Callable[[Item], Conversation]:
        """Runs a command whose connection is cut while it writes."""

        def conversation(request: Item) -> Conversation:
            shell = Shell(offered_tools(request))
            yield from self._where(shell)
            loop = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; sleep 0.1; done"
            result = yield from shell.start(f"{loop}; exit 5", yield_time_ms=1000)
            running = result.session is not None
            self.section.check("the command runs while the connection is cut", running, result.text)
            # Long enough that output is missed, and must be read again after the resume.
            cut(0.8)
            result = yield from shell.finish(result)
            lines = "".join(f"line {i}\n" for i in range(1, 41))
            self.section.equal("its output is complete, in order and once", result.output, lines)
            self.section.equal("its exit code comes back", result.exit_code, 5)
            result = yield from shell.run("echo again")
            self._result("the next command runs", result, "again\n", 0)
            return ANSWER

        return conversation

    def through_an_outage(
        self, cut: Callable[[float], None], seconds: float
    ) -> Callable[[Item], Conversation]:
        """Runs a command that ends while its server is away."""

        def conversation(request: Item) -> Conversation:
            shell = Shell(offered_tools(request))
            yield from self._where(shell)
            script = f"echo early; sleep {seconds / 4}; echo late; exit 5"
            result = yield from shell.start(script, yield_time_ms=1000)
            running = result.session is not None
            self.section.check("the command runs when its server goes away", running, result.text)
            cut(seconds)
            result = yield from shell.finish(result)
            name = f"after {seconds:.0f} s its output and exit code come back"
            self._result(name, result, "early\nlate\n", 5)
            result = yield from shell.run("echo again")
            self._result("the next command runs", result, "again\n", 0)
            return ANSWER

        return conversation

    def _where(self, shell: Shell) -> Step:
        result = yield from shell.run(f'printf "%s\\n" "${NONCE}"')
        self._result("a command runs on our server", result, f"{self.nonce}\n", 0)
        result = yield from shell.run("pwd -P")
        self._result("it runs in the work directory", result, f"{self.work.resolve()}\n", 0)

    def _isolated(self, shell: Shell) -> Step:
        result = yield from shell.run(f'printf "[%s]\\n" "${CLI_ONLY}"')
        self._result("it does not see the environment of the CLI", result, "[]\n", 0)

    def _streams(self, shell: Shell) -> Step:
        result = yield from shell.run("echo to-stdout; sleep 0.2; echo to-stderr >&2")
        self._result("stdout and stderr come back", result, "to-stdout\nto-stderr\n", 0)
        text = "grüße, 世界 🙂"
        result = yield from shell.run(f"printf '%s' '{text}'")
        self._result("text beyond ASCII, without a last newline, comes back", result, text, 0)

    def _codes(self, shell: Shell) -> Step:
        result = yield from shell.run("echo before; exit 42")
        self._result("a command that fails gives its code", result, "before\n", 42)
        result = yield from shell.run("/nonexistent/program")
        self.section.equal("a command that is not found gives 127", result.exit_code, 127)
        result = yield from shell.run("kill -KILL $$")
        self.section.equal("a killed command gives 128 + 9", result.exit_code, 137)
        result = yield from shell.run("true")
        self._result("a command without output gives 0", result, "", 0)

    def _long(self, shell: Shell) -> Step:
        result = yield from shell.run("seq 1 2000")
        lines = "".join(f"{i}\n" for i in range(1, 2001))
        self._result("a long output is complete", result, lines, 0)
        # More than the server retains; the CLI shows the model the two ends of it.
        script = "echo START; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo END"
        budget = {"max_output_tokens": 1000} if shell.interactive else {}
        result = yield from shell.run(script, **budget)
        whole = "START\nxxx" in result.output and result.output.endswith("xxx\nEND\n")
        good = whole and result.exit_code == 0
        self.section.check("3 MB arrive with both their ends", good, shorten(result.text))

    def _files(self, shell: Shell) -> Step:
        result = yield from shell.run("mkdir sub && printf content > sub/file && cat sub/file")
        self._result("a command writes and reads a file", result, "content", 0)
        written = self.work / "sub" / "file"
        content = written.read_text(encoding="utf-8") if written.exists() else None
        self.section.equal("the file is on the server's host", content, "content")
        if shell.interactive:
            sub = str(self.work / "sub")
            result = yield from shell.run("pwd -P", workdir=sub)
            self._result("workdir is obeyed", result, f"{Path(sub).resolve()}\n", 0)
            result = yield from shell.run("echo plain", login=False)
            self._result("a shell without login runs", result, "plain\n", 0)

    def _parallel(self, shell: Shell) -> Step:
        commands = [f"sleep 0.{9 - i}; echo number {i}; exit {i}" for i in range(1, 5)]
        results = yield from shell.run_all(commands)
        got = [(each.output, each.exit_code) for each in results]
        expected = [(f"number {i}\n", i) for i in range(1, 5)]
        self.section.equal("four commands of one turn keep their outputs apart", got, expected)

    def _slow(self, shell: Shell) -> Step:
        script = "echo early; sleep 3; echo late; exit 4"
        result = yield from shell.start(script, yield_time_ms=1500)
        early = (result.output, result.exit_code, result.session is not None)
        self.section.equal("a slow command yields while it runs", early, ("early\n", None, True))
        result = yield from shell.finish(result)
        self._result("polling it gives the rest and the code", result, "early\nlate\n", 4)

    def _terminal(self, shell: Shell) -> Step:
        script = 'stty size; printf "name? "; read -r name; echo "hello, $name"; exit 7'
        result = yield from shell.start(script, tty=True, yield_time_ms=1000)
        result = yield from shell.until(result, "name? ")
        waiting = (result.output, result.session is not None)
        expected = ("24 80\r\nname? ", True)
        self.section.equal("a command on a terminal of 24 by 80 prompts", waiting, expected)
        if result.session is not None:
            result = yield from shell.write(result.session, "wörld\n")
            result = yield from shell.finish(result)
            typed = "wörld\r\nhello, wörld\r\n"
            self._result("what write_stdin types is echoed and answered", result, typed, 7)

    def _refused(self, shell: Shell) -> Step:
        missing = str(self.work / "missing")
        result = yield from shell.start("echo never", workdir=missing)
        refused = result.exit_code is None and "(-32603)" in result.text
        self.section.check("a missing directory is refused", refused, result.text)

    def _result(self, name: str, result: Result, output: str, code: int) -> None:
        self.section.equal(name, (result.output, result.exit_code), (output, code))
