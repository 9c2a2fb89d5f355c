"""What the scripted model asks for of files, and what must be on disk and on the wire.

Each conversation is a generator for `model.Model`, over a `project.Project` that it fills before.
Not here: how the CLI reaches the server (`file_scenarios`); commands (`conversations`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable, List, Optional

from conversations import ANSWER
from file_tools import FileTools, Outcome
from model import Conversation, Item
from patches import (
    BELOW_FILE_PATCH,
    GOOD_PATCH,
    LINK_PATCH,
    LINKED_FILE_PATCH,
    MISSING_PATCH,
    OUTSIDE_PATCH,
    STALE_PATCH,
    after_good_patch,
    write_sources,
)
from project import IMAGE_SIDE, PNG, Project, Tree, picture
from report import Section, shorten
from tools import Shell, Step, offered_tools
from wire import NOT_FOUND, Call, Wire, comes_true

NOTICED_WITHIN = 5.0
WRITES = ("fs/writeFile", "fs/remove", "fs/createDirectory", "fs/copy", "fs/writeBlock")


class Files:
    """What these conversations need: where to report, the project and the wire."""

    def __init__(self, section: Section, nonce: str, project: Project, wire: Wire) -> None:
        self.section = section
        self.project = project
        self.wire = wire
        self._nonce = nonce
        self._image = b""

    def write_instructions(self) -> None:
        """Writes two `AGENTS.md`; the inner one is there for the server only."""
        outer = self._instructions("outer")
        (self.project.root / "AGENTS.md").write_text(outer, encoding="utf-8")
        self.project.add_for_server("AGENTS.md", self._instructions("inner").encode())

    def write_skill(self) -> None:
        """Writes a skill of the project."""
        text = f"---\nname: knitting\ndescription: knits {self._nonce}\n---\n\nKnit.\n"
        self.project.add(".agents/skills/knitting/SKILL.md", text.encode())

    def write_sources(self) -> None:
        """Writes the files that the patches are about."""
        write_sources(self.project)

    def write_outside(self) -> None:
        """Writes a file that no policy makes writable, with a link in the work directory to it."""
        self.project.add_outside("file.txt", b"old\n")

    def write_image(self, side: int = IMAGE_SIDE) -> None:
        """Writes an image that is there for the server only."""
        self._image = picture(side)
        self.project.add_for_server("image.png", self._image)

    def basics(self, request: Item) -> Conversation:
        """Does a bit of everything where the wire is not seen."""
        self._has_instructions(request)
        tools = FileTools(offered_tools(request))
        yield from self._good_patch(tools)
        yield from self._stale_patch(tools)
        yield from self._image_is_seen(tools)
        return ANSWER

    def instructions(self, request: Item) -> Conversation:
        """Finds instructions and skills of the server's disk in the first request."""
        self._has_instructions(request)
        self._instructions_were_read()
        skill = any(f"knits {self._nonce}" in text for text in texts(request))
        self.section.check("the model is told of the project's skill", skill, "not in the request")
        walked = [call for call in self.wire.calls("fs/walk") if call.result is not None]
        self.section.check("fs/walk found it", bool(walked), "no fs/walk with a result")
        yield from ()
        self._only_missing()
        return ANSWER

    def watched(self, request: Item) -> Conversation:
        """Finds that the CLI watches for what is missing, and is told when it comes."""
        info = (self.wire.calls("initialize")[0].result or {}).get("environmentInfo", {})
        able = info.get("capabilities", {}).get("fsWatchMissing")
        self.section.equal("the server can watch for missing files", able, True)
        comes_true(self._watches_are_answered, NOTICED_WITHIN)
        watches = self.wire.calls("fs/watchMissing")
        self.section.check("the CLI asks for it", bool(watches), "no fs/watchMissing")
        if watches:
            answers = [call.result for call in watches]
            expected = [{"watching": True} for _ in watches]
            self.section.equal("the server watches each time", answers, expected)
            yield from self._missing_comes(Shell(offered_tools(request)), watches[-1])
        self._only_missing()
        return ANSWER

    def patched(self, tool: str) -> Callable[[Item], Conversation]:
        """Applies patches by the tool that the CLI must offer."""

        def conversation(request: Item) -> Conversation:
            tools = FileTools(offered_tools(request))
            self.section.equal("the CLI offers the tool for patches", tools.patches, tool)
            before = self.project.tree()
            yield from self._good_patch(tools)
            self._patch_was_sent(before)
            writes = len(self.wire.calls(*WRITES))
            yield from self._stale_patch(tools)
            yield from self._missing_patch(tools)
            more = len(self.wire.calls(*WRITES)) - writes
            self.section.equal("for these two, nothing was sent to be written", more, 0)
            started = self.wire.calls("process/start")
            self.section.equal("no command ran for a patch", len(started), 0)
            self._only_missing()
            before = self.project.tree()
            result = yield from tools.patch(BELOW_FILE_PATCH)
            self._unchanged("a patch below a file that is no folder", result, before)
            return ANSWER

        return conversation

    def seen(self, request: Item) -> Conversation:
        """Looks at an image, and at one that is missing."""
        tools = FileTools(offered_tools(request))
        yield from self._image_is_seen(tools)
        self._image_was_read()
        missing = self.project.work / "missing.png"
        result = yield from tools.view(str(missing))
        codes = {call.code for call in self.wire.about(missing)}
        got = (result.good, "No such file or directory" in result.text, codes)
        self.section.equal("a missing image is reported", got, (False, True, {NOT_FOUND}))
        self._only_missing()
        return ANSWER

    def seen_large(self, request: Item) -> Conversation:
        """Looks at an image that does not fit into one frame, and that the CLI makes smaller."""
        tools = FileTools(offered_tools(request))
        result = yield from tools.view(str(self._image_path))
        seen = (result.image or b"").startswith(PNG)
        self.section.check(f"the model sees an image of {self._image_size}", seen, result.text)
        self._image_was_read()
        connections = len(self.wire.calls("initialize"))
        self.section.equal("the CLI kept its connection", connections, 1)
        self._only_missing()
        return ANSWER

    def workspace(self, request: Item) -> Conversation:
        """Reads and writes under a policy that allows writes to the work directory."""
        tools = FileTools(offered_tools(request))
        yield from self._reads_under_policy(request, tools)
        before = self.project.tree()
        yield from self._good_patch(tools)
        self._patch_was_sent(before)
        self._only_missing()
        yield from self._outside_patches(tools)
        self._writes_under_policy()
        return ANSWER

    def patched_under_policy(self, tool: str) -> Callable[[Item], Conversation]:
        """Applies the same patches with a sandbox policy on the wire."""

        def conversation(request: Item) -> Conversation:
            answer = yield from self.patched(tool)(request)
            yield from self._outside_patches(FileTools(offered_tools(request), "outside"))
            self._writes_under_policy()
            return answer

        return conversation

    def read_only(self, request: Item) -> Conversation:
        """Reads under a policy that allows no writes, and tries one."""
        tools = FileTools(offered_tools(request))
        yield from self._reads_under_policy(request, tools)
        before = self.project.tree()
        result = yield from tools.patch(GOOD_PATCH)
        self._unchanged("a patch in a read-only sandbox", result, before)
        self.section.equal("nothing was sent to be written", self.wire.calls(*WRITES), [])
        return ANSWER

    def _reads_under_policy(self, request: Item, tools: FileTools) -> Step:
        self._has_instructions(request)
        self._instructions_were_read()
        yield from self._image_is_seen(tools)
        self._image_was_read()
        reads = self.wire.about(self._image_path, "fs/readFile")
        kinds = [policy_kind(call) for call in reads]
        # A CLI whose policy has full read leaves the policy of a read out, since 0.169.
        told = kinds in (["managed"], [None])
        self.section.check("the image is read under a policy, or under full read", told, str(kinds))
        self._only_missing()

    def _outside_patches(self, tools: FileTools) -> Step:
        writes = len(self.wire.calls(*WRITES))
        yield from self._outside_patch(tools, "a patch that leads outside", OUTSIDE_PATCH)
        more = len(self.wire.calls(*WRITES)) - writes
        self.section.equal("the CLI does not send it", more, 0)
        yield from self._outside_patch(tools, "a patch through a link", LINK_PATCH)
        yield from self._outside_patch(tools, "a change through a link", LINKED_FILE_PATCH)
        sent = self.wire.calls(*WRITES)[writes:]
        refused = bool(sent) and all(call.code is not None for call in sent)
        answers = [f"{call.method}: {call.answer}" for call in sent]
        self.section.check("the server refuses these two", refused, "\n".join(answers))

    def _outside_patch(self, tools: FileTools, what: str, patch: str) -> Step:
        before, outside = self.project.tree(), self.project.tree_outside()
        result = yield from tools.patch(patch)
        self._unchanged(what, result, before)
        now = self.project.tree_outside()
        self.section.equal("what is outside is as before", now, outside)

    def _writes_under_policy(self) -> None:
        calls = self.wire.calls(*WRITES)
        kinds = {policy_kind(call) for call in calls}
        self.section.equal("every write was asked for with a policy", kinds, {"managed"})
        wrong = [call for call in self.wire.calls() if call.code in (-32601, -32602)]
        lines = [f"{call.method}: {call.answer}" for call in wrong[:5]]
        self.section.check("no call was invalid or unknown", not wrong, "\n".join(lines))

    def _has_instructions(self, request: Item) -> None:
        found = [text for text in texts(request) if self._instructions("outer") in text]
        self.section.check("the model gets AGENTS.md of the project", bool(found), "not there")
        inner = self._instructions("inner")
        name = "the model gets the AGENTS.md that only the server can read"
        self.section.check(name, any(inner in text for text in texts(request)), "not there")

    def _instructions_were_read(self) -> None:
        path = self.project.work / "AGENTS.md"
        read = [call.read for call in self.wire.about(path, "fs/readFile")]
        self.section.equal("fs/readFile brought it", read, [self._instructions("inner").encode()])

    def _instructions(self, which: str) -> str:
        return f"The {which} rules {self._nonce}:\n\n- grüße, 世界 🙂\n- the last line"

    def _good_patch(self, tools: FileTools) -> Step:
        before = self.project.tree()
        result = yield from tools.patch(GOOD_PATCH)
        self.section.check("the model is told that a patch succeeded", result.good, result.text)
        expected = after_good_patch(before)
        got = self.project.tree()
        wrong = sorted(name for name in {*got, *expected} if got.get(name) != expected.get(name))
        lines = [f"{n}: {shorten(got.get(n))}, not {shorten(expected.get(n))}" for n in wrong]
        name = "files are added, changed, deleted and moved"
        self.section.check(name, not wrong, "\n".join(lines))

    def _patch_was_sent(self, before: Tree) -> None:
        expected = after_good_patch(before)
        written = [(self._name(call), call.written) for call in self._done("fs/writeFile")]
        changed = [name for name in expected if before.get(name) != expected[name]]
        new = [(name, expected[name][1]) for name in changed]
        self.section.equal("fs/writeFile carried them, each once", sorted(written), sorted(new))
        removed = [self._name(call) for call in self._done("fs/remove")]
        self.section.equal("fs/remove took the others", sorted(removed), ["from.txt", "gone.txt"])

    def _stale_patch(self, tools: FileTools) -> Step:
        before = self.project.tree()
        result = yield from tools.patch(STALE_PATCH)
        self._unchanged("a patch that does not fit", result, before)
        told = "Failed to find expected lines" in result.text
        self.section.check("the model is told where it does not fit", told, result.text)

    def _missing_patch(self, tools: FileTools) -> Step:
        before = self.project.tree()
        result = yield from tools.patch(MISSING_PATCH)
        self._unchanged("a patch for a missing file", result, before)
        told = "No such file or directory" in result.text
        self.section.check("the model is told that it is missing", told, result.text)

    def _unchanged(self, what: str, result: Outcome, before: Tree) -> None:
        got = (result.good, self.project.tree() == before)
        detail = f"success, files unchanged: {got}\n{result.text}"
        self.section.check(f"{what} fails and changes no file", got == (False, True), detail)

    def _image_is_seen(self, tools: FileTools) -> Step:
        result = yield from tools.view(str(self._image_path))
        same = result.image == self._image
        detail = f"{len(result.image or b'')} bytes instead; {shorten(result.text)}"
        self.section.check(f"the model sees an image of {self._image_size}", same, detail)

    def _image_was_read(self) -> None:
        reads = self.wire.about(self._image_path, "fs/readFile")
        same = [call.read == self._image for call in reads]
        self.section.equal("fs/readFile brought it", same, [True])

    @property
    def _image_path(self) -> Path:
        return self.project.work / "image.png"

    @property
    def _image_size(self) -> str:
        return f"{len(self._image) / 1e6:.0f} MB"

    def _missing_comes(self, shell: Shell, watch: Call) -> Step:
        yield from shell.run("mkdir -p .agents/skills/late")
        change = {"watchId": watch.params.get("watchId")}

        def told() -> bool:
            return change in self.wire.events("fs/missingChanged")

        name = "fs/missingChanged tells that a missing folder came"
        detail = f"no {change} in {NOTICED_WITHIN} s"
        self.section.check(name, comes_true(told, NOTICED_WITHIN), detail)

    def _watches_are_answered(self) -> bool:
        watches = self.wire.calls("fs/watchMissing")
        return bool(watches) and all(call.answer is not None for call in watches)

    def _only_missing(self) -> None:
        wrong = self.wire.failures()
        name = "no file call failed other than by a missing file"
        self.section.check(name, not wrong, "\n".join([f"{len(wrong)} did:", *wrong[:5]]))

    def _done(self, method: str) -> List[Call]:
        return [call for call in self.wire.calls(method) if call.result == {}]

    def _name(self, call: Call) -> str:
        return str(call.path.relative_to(self.project.work))


def policy_kind(call: Call) -> Optional[str]:
    """Returns the kind of the policy under which a call was asked for."""
    return ((call.params.get("sandbox") or {}).get("permissions") or {}).get("type")


def texts(request: Item) -> List[str]:
    """Returns every text of a request's messages."""
    found = []
    for item in request.get("input", []):
        content = item.get("content")
        for part in content if isinstance(content, list) else []:
            found.append(part.get("text") or "")
    return found
