"""Drives `exec-server mcp` with the official MCP client, and asserts what it says.

    mcp_client.py --workspace DIR [--outside DIR] [--mode auto|legacy] [--outlive] stdio PROGRAM ARGUMENT...
    mcp_client.py --workspace DIR [--outside DIR] [--mode auto|legacy] [--outlive] [--token TOKEN] http URL

With --outlive, commands must outlive the client that started them; otherwise they must end with it. Every case prints `ok NAME`; `--only NAME` runs one of them. Whatever fails ends the program with a traceback.
"""

import argparse
import base64
import errno
import os
import stat
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

PATIENCE = 30.0
TOOLS = {
    "exec_command",
    "write_stdin",
    "list_processes",
    "terminate_process",
    "read_file",
    "write_file",
    "edit_file",
    "apply_patch",
    "list_directory",
    "find_files",
    "search_files",
    "watch_files",
}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Agent:
    """A client that knows what it expects."""

    def __init__(self, client: Client, workspace: Path, outside: Path | None):
        self.client, self.workspace, self.outside = client, workspace, outside

    async def call(self, name: str, arguments: dict, **options):
        return await self.client.call_tool(name, arguments, **options)

    async def text(self, name: str, **arguments) -> str:
        result = await self.call(name, arguments)
        assert not result.is_error, result
        return result.content[0].text

    async def refused(self, name: str, **arguments) -> str:
        result = await self.call(name, arguments)
        assert result.is_error, result
        return result.content[0].text

    async def command(self, cmd: str, **arguments) -> dict:
        """Runs a command; the structured answer and the text must say the same."""
        result = await self.call("exec_command", {"cmd": cmd, **arguments})
        assert not result.is_error, result
        answer = result.structured_content
        text = result.content[0].text
        assert text.startswith("Wall time: ") and answer["output"] in text, text
        if "exit_code" in answer:
            assert f"Process exited with code {answer['exit_code']}" in text, text
        else:
            assert f"Process running with session ID {answer['session_id']}" in text, text
        return answer

    async def write(self, session_id: str, **arguments) -> dict:
        result = await self.call("write_stdin", {"session_id": session_id, **arguments})
        assert not result.is_error, result
        return result.structured_content

    async def running(self) -> list[dict]:
        result = await self.call("list_processes", {})
        return result.structured_content["processes"]

    async def end(self, session_id: str) -> None:
        result = await self.call("terminate_process", {"session_id": session_id})
        assert not result.is_error, result


async def introduces_itself(agent: Agent) -> None:
    client = agent.client
    assert client.server_info.name == "exec-server", client.server_info
    assert client.server_info.version, client.server_info
    assert str(agent.workspace) in client.instructions, client.instructions
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == TOOLS, sorted(tools)
    for tool in tools.values():
        assert tool.description and tool.title and tool.input_schema["type"] == "object", tool
    hints = {name: tool.annotations for name, tool in tools.items()}
    assert hints["read_file"].read_only_hint and not hints["write_file"].read_only_hint
    assert hints["exec_command"].destructive_hint and hints["exec_command"].open_world_hint
    assert tools["exec_command"].input_schema["required"] == ["cmd"]
    assert "exit_code" in tools["exec_command"].output_schema["properties"]


async def runs_commands(agent: Agent) -> None:
    answer = await agent.command("echo out; echo err >&2; exit 3")
    assert answer["exit_code"] == 3, answer
    assert "out\n" in answer["output"] and "err\n" in answer["output"], answer
    answer = await agent.command("pwd")
    assert answer["output"].strip() == str(agent.workspace), answer
    (agent.workspace / "below").mkdir()
    answer = await agent.command("pwd; echo $NAME", workdir="below", env={"NAME": "value"})
    assert answer["output"] == f"{agent.workspace}/below\nvalue\n", answer
    answer = await agent.command("kill -KILL $$")
    assert answer["exit_code"] == 137 and answer["signal"] == "SIGKILL", answer
    answer = await agent.command("seq 1 100000", max_output_tokens=100)
    assert answer["original_token_count"] > 10_000, answer["original_token_count"]
    assert len(answer["output"]) < 2000, len(answer["output"])
    assert answer["output"].startswith("1\n2\n") and "100000" in answer["output"]


async def answers_fit_into_a_message(agent: Agent) -> None:
    escapes = "printf first; head -c 300000 /dev/zero | tr '\\0' '\\033'; printf last; exit 3"
    answer = await agent.command(escapes, view="raw", max_output_tokens=50_000)
    assert answer["exit_code"] == 3, answer["exit_code"]
    assert answer["output"].startswith("first") and answer["output"].endswith("last")
    picture = agent.workspace / "large.png"
    picture.write_bytes(PNG + bytes(700 * 1024 - len(PNG)))
    result = await agent.call("read_file", {"path": "large.png"})
    assert result.content[0].type == "image", result.content[0].type
    picture.write_bytes(PNG + bytes(5 << 20))
    text = await agent.text("read_file", path="large.png")
    assert "make a smaller copy" in text, text
    picture.unlink()


async def tells_progress(agent: Agent) -> None:
    told: list[tuple[float, str | None]] = []

    async def progress(now: float, total: float | None, message: str | None) -> None:
        told.append((now, message))

    arguments = {"cmd": "for i in 1 2 3 4 5; do echo step $i; sleep 1; done", "yield_time_ms": 20_000}
    began = time.monotonic()
    result = await agent.call("exec_command", arguments, progress_callback=progress)
    took = time.monotonic() - began
    assert result.structured_content["exit_code"] == 0, result
    assert took >= 4.5, took
    assert len(told) >= 2, told
    assert [now for now, _ in told] == sorted(now for now, _ in told), told
    assert any("step" in (message or "") for _, message in told), told


async def a_client_that_gives_up_leaves_the_command_running(agent: Agent) -> None:
    arguments = {"cmd": "echo started; sleep 600", "yield_time_ms": 30_000}
    began = time.monotonic()
    try:
        await agent.call("exec_command", arguments, read_timeout_seconds=1.0)
        raise AssertionError("the call did not time out")
    except MCPError as error:
        assert "imed out" in error.message, error
    assert time.monotonic() - began < 10
    [process] = await agent.running()
    assert process["running"], process
    answer = await agent.write(process["session_id"], wait_for={"pattern": "started"})
    assert answer["output"] == "started\n", answer
    await agent.end(process["session_id"])
    assert await agent.running() == []


async def talks_to_commands(agent: Agent) -> None:
    answer = await agent.command(
        "printf 'name? '; read name; echo \"hello $name\"", tty=True, wait_for={"pattern": r"name\? "}
    )
    assert answer["output"] == "name? ", answer
    answer = await agent.write(answer["session_id"], chars="you\n", yield_time_ms=20_000)
    assert answer["exit_code"] == 0 and "hello you" in answer["output"], answer

    answer = await agent.command("wc -c", yield_time_ms=20_000)
    assert answer["exit_code"] == 0 and answer["output"].strip() == "0", answer
    answer = await agent.command("wc -c", open_stdin=True, yield_time_ms=250)
    answer = await agent.write(answer["session_id"], chars="12345", close_stdin=True, yield_time_ms=20_000)
    assert answer["exit_code"] == 0 and answer["output"].strip() == "5", answer

    screen = r"printf '\033[2J\033[3;5Hmiddle'; sleep 600"
    answer = await agent.command(screen, tty=True, view="screen", wait_for={"pattern": "middle"})
    assert answer["output"].splitlines()[2] == "    middle", answer
    await agent.end(answer["session_id"])

    answer = await agent.command("sleep 600", tty=True, yield_time_ms=250)
    assert "Nothing" not in await agent.text("list_processes")
    answer = await agent.write(answer["session_id"], chars="\x03", yield_time_ms=20_000)
    assert answer["exit_code"] == 130, answer
    assert await agent.text("list_processes") == "Nothing is running."


async def works_on_files(agent: Agent) -> None:
    text = await agent.text("write_file", path="src/a.txt", content="one\ntwo\nthree\n")
    assert text == "Created src/a.txt (14 bytes)", text
    text = await agent.text("read_file", path="src/a.txt", offset=2, limit=1, line_numbers=True)
    assert text.startswith("     2\ttwo\n[lines 2 to 2; go on with offset 3]"), text
    text = await agent.text("edit_file", path=str(agent.workspace / "src/a.txt"), old="two", new="2")
    assert text == "Edited src/a.txt at line 2", text
    patch = """*** Begin Patch
*** Update File: src/a.txt
*** Move to: src/b.txt
@@ one
-2
+zwei
 three
*** Add File: src/c.txt
+new
*** End Patch"""
    text = await agent.text("apply_patch", patch=patch)
    assert text == "R src/a.txt -> src/b.txt\nA src/c.txt", text
    assert (agent.workspace / "src/b.txt").read_text() == "one\nzwei\nthree\n"
    assert not (agent.workspace / "src/a.txt").exists()
    wrong = patch.replace("src/a.txt", "src/b.txt").replace("src/b.txt\n@@", "src/d.txt\n@@")
    text = await agent.refused("apply_patch", patch=wrong)
    assert "`src/b.txt`: hunk 1" in text, text
    assert await agent.text("list_directory", path="src") == "b.txt\nc.txt"
    assert await agent.text("find_files", glob="**/c.txt") == "src/c.txt"
    text = await agent.text("search_files", pattern="zw.i")
    assert text == "src/b.txt:2:zwei\n", text
    (agent.workspace / "p.png").write_bytes(PNG)
    result = await agent.call("read_file", {"path": "p.png"})
    assert result.content[0].type == "image" and result.content[0].mime_type == "image/png", result
    assert base64.b64decode(result.content[0].data) == PNG


async def changes_at_once_are_all_made(agent: Agent) -> None:
    lines = [f"line {number};\n" for number in range(10)]
    shared = agent.workspace / "shared.txt"
    shared.write_text("".join(lines))

    async def edit(number: int) -> None:
        await agent.text("edit_file", path="shared.txt", old=f"line {number};", new=f"new {number};")

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(edit, number)
    assert shared.read_text() == "".join(lines).replace("line", "new"), shared.read_text()


async def waits_for_changes(agent: Agent) -> None:
    told: list[str] = []

    async def watch(scope: anyio.CancelScope) -> None:
        told.append(await agent.text("watch_files", path="src", timeout_ms=25_000))
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch, group.cancel_scope)
        # Only the answer tells that the watch had begun: changes go on until it comes.
        for number in range(1000):
            (agent.workspace / f"src/change-{number}").write_text("")
            await anyio.sleep(0.05)
    assert "change-" in told[0], told
    text = await agent.text("watch_files", path="src", timeout_ms=100)
    assert text.startswith("Nothing has changed"), text


async def explains_errors(agent: Agent) -> None:
    try:
        await agent.call("no_such_tool", {})
        raise AssertionError("an unknown tool was called")
    except MCPError as error:
        assert "unknown tool `no_such_tool`" in error.message, error
    for name, arguments, says in [
        ("read_file", {"path": "missing.txt"}, "missing.txt"),
        ("read_file", {}, "missing field `path`"),
        ("exec_command", {"cmd": "true", "yield_time_ms": "soon"}, "argument `yield_time_ms` of exec_command"),
        ("exec_command", {"cmd": "true", "workdir": "missing"}, "missing"),
        ("exec_command", {"cmd": "true", "shell": "/no/such/shell"}, "/no/such/shell"),
        ("write_stdin", {"session_id": 4711}, "4711"),
        ("edit_file", {"path": "p.png", "old": "a", "new": "b"}, "not UTF-8 text"),
    ]:
        text = await agent.refused(name, **arguments)
        assert says in text, (name, text)


async def stays_in_its_sandbox(agent: Agent) -> None:
    if agent.outside is None:
        return
    forbidden = agent.outside / "forbidden"
    answer = await agent.command(f"echo x > {forbidden}")
    assert answer["exit_code"] != 0, answer
    text = await agent.refused("write_file", path=str(forbidden), content="x")
    assert "forbidden" in text and "outside the workspace" in text and "sandbox" in text, text
    patch = f"*** Begin Patch\n*** Add File: {forbidden}\n+x\n*** End Patch"
    await agent.refused("apply_patch", patch=patch)
    assert not forbidden.exists()
    readable = agent.outside / "readable"
    readable.write_text("may be read\n")
    assert await agent.text("read_file", path=str(readable)) == "may be read\n"


CASES = [
    introduces_itself,
    runs_commands,
    answers_fit_into_a_message,
    tells_progress,
    a_client_that_gives_up_leaves_the_command_running,
    talks_to_commands,
    works_on_files,
    changes_at_once_are_all_made,
    waits_for_changes,
    explains_errors,
    stays_in_its_sandbox,
]


def has_reader(fifo: Path) -> bool:
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        return True
    except OSError as error:
        assert error.errno == errno.ENXIO, error
        return False


async def until(condition, what: str) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():
            await anyio.sleep(0.02)
    print("ok", what, flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--outside", type=Path)
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--outlive", action="store_true")
    parser.add_argument("--token")
    parser.add_argument("--only")
    parser.add_argument("transport", choices=["stdio", "http"])
    parser.add_argument("server", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    @asynccontextmanager
    async def connected():
        if options.transport == "stdio":
            program, *arguments = options.server
            environment = {**os.environ}
            server = StdioServerParameters(
                command=program, args=arguments, env=environment, cwd=options.workspace
            )
            async with Client(server, mode=options.mode) as client:
                yield client
            return
        headers = {"Authorization": f"Bearer {options.token}"} if options.token else {}
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http_client:
            transport = streamable_http_client(options.server[0], http_client=http_client)
            async with Client(transport, mode=options.mode) as client:
                yield client

    fifo = options.workspace / "fifo"
    os.mkfifo(fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    async with connected() as client:
        agent = Agent(client, options.workspace, options.outside)
        print("speaks", client.protocol_version, flush=True)
        for case in CASES:
            if options.only not in (None, case.__name__):
                continue
            with anyio.fail_after(PATIENCE * 2):
                await case(agent)
            print("ok", case.__name__, flush=True)
        # Its child holds the pipe, too, and has left its parent.
        left = "(setsid sleep 600 <> fifo &) ; sleep 600 <> fifo"
        await agent.command(left, yield_time_ms=250)
        await until(lambda: has_reader(fifo), "commands_run_on")
        if options.transport == "http" and not options.outlive:
            async with connected() as other:
                stranger = Agent(other, options.workspace, options.outside)
                assert await stranger.running() == []
                [process] = await agent.running()
                assert str(process["session_id"]) in await stranger.refused(
                    "write_stdin", session_id=process["session_id"]
                )
            print("ok sessions_do_not_see_each_other", flush=True)
    if options.outlive:
        async with connected() as client:
            agent = Agent(client, options.workspace, options.outside)
            [process] = await agent.running()
            assert process["running"] and has_reader(fifo), process
            await agent.end(process["session_id"])
            assert await agent.running() == []
        await until(lambda: not has_reader(fifo), "commands_outlive_their_client")
    else:
        await until(lambda: not has_reader(fifo), "commands_end_with_their_session")
    print("done", flush=True)


if __name__ == "__main__":
    sys.exit(anyio.run(main))
