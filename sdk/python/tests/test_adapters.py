"""The adapters with the real frameworks and a scripted model. They need Python 3.11 and newer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Awaitable, Callable, Iterator

import pytest

from exec_server import AsyncEnvironment, Environment, SandboxPolicy


@pytest.fixture
def url(server: Any) -> str:
    return str(server.url)


def deep_agent_answers(backend: Any, calls: "list[dict[str, Any]]") -> "list[str]":
    """Runs a Deep Agent whose model makes these tool calls, and returns the tools' answers."""
    from deepagents import create_deep_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, ToolMessage

    class ScriptedModel(GenericFakeChatModel):
        def bind_tools(self, *_arguments: Any, **_options: Any) -> Any:
            return self

    def script() -> Iterator[AIMessage]:
        for number, call in enumerate(calls):
            yield AIMessage(content="", tool_calls=[{"id": f"call-{number}", **call}])
        yield AIMessage(content="done")

    agent = create_deep_agent(model=ScriptedModel(messages=script()), backend=backend)
    state = agent.invoke({"messages": [("user", "go")]}, {"recursion_limit": 100})
    return [str(it.content) for it in state["messages"] if isinstance(it, ToolMessage)]


def test_deep_agent_works_in_the_environment(url: str, tmp_path: Any) -> None:
    from exec_server.adapters.deepagents import ExecServerBackend

    file = str(tmp_path / "new" / "notes.txt")
    with Environment.connect(url) as environment:
        backend = ExecServerBackend(environment, cwd=str(tmp_path))
        answers = deep_agent_answers(
            backend,
            [
                {"name": "write_file", "args": {"file_path": file, "content": "one\ntwo\n"}},
                {"name": "execute", "args": {"command": "wc -l < new/notes.txt; exit 3"}},
                {
                    "name": "edit_file",
                    "args": {"file_path": file, "old_string": "two", "new_string": "three"},
                },
                {"name": "read_file", "args": {"file_path": file}},
                {"name": "grep", "args": {"pattern": "three", "path": str(tmp_path)}},
            ],
        )
    assert "2" in answers[1] and "3" in answers[1]
    assert "three" in answers[3]
    assert "notes.txt" in answers[4]
    assert (tmp_path / "new" / "notes.txt").read_text() == "one\nthree\n"


def test_backend_bounds_output_and_time(url: str, tmp_path: Any) -> None:
    from exec_server.adapters.deepagents import ExecServerBackend

    with Environment.connect(url) as environment:
        backend = ExecServerBackend(environment, cwd=str(tmp_path), max_output=1000)
        endless = backend.execute("yes | head -c 100000; echo end")
        assert (len(endless.output), endless.exit_code, endless.truncated) == (1000, 0, True)
        slow = backend.execute("echo started; sleep 100", timeout=1)
        assert slow.exit_code == 124
        assert slow.output == "started\n\n[killed after 1 s]"


def test_backend_reports_files_one_by_one(url: str, tmp_path: Any) -> None:
    from exec_server.adapters.deepagents import ExecServerBackend

    with Environment.connect(url) as environment:
        backend = ExecServerBackend(environment, sandbox=SandboxPolicy.read_only())
        (tmp_path / "file").write_bytes(b"\xff\x00")
        paths = [str(tmp_path / "file"), str(tmp_path / "absent"), str(tmp_path), "relative"]
        found = backend.download_files(paths)
        assert found[0].content == b"\xff\x00"
        assert [it.error for it in found[1:]] == ["file_not_found", "is_directory", "invalid_path"]
        refused = backend.upload_files([(str(tmp_path / "other"), b"x")])
        assert refused[0].error is not None
        assert not (tmp_path / "other").exists()


def test_openai_sandbox_agent_works_in_the_environment(url: str, tmp_path: Any) -> None:
    from agents.sandbox.entries import File
    from agents.sandbox.manifest import Manifest

    from exec_server.adapters.openai_agents import (
        ExecServerSandboxClient,
        ExecServerSandboxClientOptions,
    )

    async def scenario() -> None:
        client = ExecServerSandboxClient()
        options = ExecServerSandboxClientOptions(url=url, workspaces=str(tmp_path))
        manifest = Manifest(entries={"brief.txt": File(content=b"read me")})
        session = await client.create(manifest=manifest, options=options)
        async with session:
            shown = await session.exec("cat brief.txt; echo more > made; exit 4")
            assert (shown.stdout, shown.exit_code) == (b"read me", 4)
            outside = await session.exec("touch /usr/outside-of-the-workspace")
            assert outside.exit_code != 0
            assert b"Read-only file system" in outside.stderr
            assert (await session.read(Path("made"))).read() == b"more\n"
            with pytest.raises(Exception, match="not found"):
                await session.read(Path("absent"))
            with pytest.raises(Exception, match="timed out"):
                await session.exec("sleep 100", timeout=0.5)
            archive = await session.persist_workspace()
            state = client.serialize_session_state(session.state)
        assert "token" not in json.dumps(state)

        resumed = await client.resume(client.deserialize_session_state(dict(state)))
        async with resumed:
            assert (await resumed.read(Path("made"))).read() == b"more\n"
            await resumed.exec("rm made")
            await resumed.hydrate_workspace(archive)
            assert (await resumed.read(Path("made"))).read() == b"more\n"
            await client.delete(resumed)
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


def test_openai_model_runs_commands_through_the_runner(url: str, tmp_path: Any) -> None:
    from agents import ModelResponse, RunConfig, Runner, Usage, set_tracing_disabled
    from agents.models.interface import Model
    from agents.sandbox import SandboxAgent, SandboxRunConfig
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    from exec_server.adapters.openai_agents import (
        ExecServerSandboxClient,
        ExecServerSandboxClientOptions,
    )

    set_tracing_disabled(True)
    answers: "list[str]" = []

    class ScriptedModel(Model):
        async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
            items = options.get("input") or arguments[1]
            outputs = [
                str(it["output"])
                for it in items
                if isinstance(it, dict) and it.get("type") == "function_call_output"
            ]
            answers[:] = outputs
            output: Any
            if outputs:
                text = ResponseOutputText(text="done", type="output_text", annotations=[])
                output = ResponseOutputMessage(
                    id="message", content=[text], role="assistant", status="completed",
                    type="message",
                )
            else:
                output = ResponseFunctionToolCall(
                    name="exec_command", call_id="call", type="function_call",
                    arguments=json.dumps({"cmd": "echo from the $0; pwd"}),
                )
            return ModelResponse(output=[output], usage=Usage(), response_id=None)

        def stream_response(self, *_arguments: Any, **_options: Any) -> Any:
            raise NotImplementedError

    async def scenario() -> None:
        config = RunConfig(
            sandbox=SandboxRunConfig(
                client=ExecServerSandboxClient(),
                options=ExecServerSandboxClientOptions(url=url, workspaces=str(tmp_path)),
            ),
        )
        agent = SandboxAgent(name="tester", model=ScriptedModel())
        result = await Runner.run(agent, "go", run_config=config)
        assert result.final_output == "done"

    asyncio.run(scenario())
    assert "from the" in answers[0] and str(tmp_path) in answers[0], answers


def test_anthropic_tools_work_in_the_environment(url: str, tmp_path: Any) -> None:
    import httpx2
    from anthropic import AsyncAnthropic

    from exec_server.adapters.anthropic_tools import environment_tools

    calls = [
        ("write", {"file_path": "a/notes.txt", "content": "one\ntwo\n"}),
        ("bash", {"command": "cd a; name=kept; wc -l < notes.txt"}),
        ("bash", {"command": "echo $name in $(basename $PWD)"}),
        ("bash", {"command": "echo failing; exit 3"}),
        ("edit", {"file_path": "a/notes.txt", "old_string": "two", "new_string": "three"}),
        ("read", {"file_path": "a/notes.txt", "view_range": [2, 2]}),
        ("grep", {"pattern": "thr.e"}),
        ("glob", {"pattern": "**/*.txt"}),
        ("read", {"file_path": "absent"}),
        ("bash", {"command": "sleep 100", "timeout_ms": 300}),
        ("bash", {"command": "pwd"}),
    ]
    results: "list[tuple[str, bool]]" = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        messages = json.loads(request.content)["messages"]
        last = messages[-1]["content"]
        if isinstance(last, list):
            for block in last:
                content = block["content"]
                text = content if isinstance(content, str) else content[0]["text"]
                results.append((text, bool(block.get("is_error"))))
        number = len(results)
        if number < len(calls):
            name, given = calls[number]
            block = {"type": "tool_use", "id": f"call-{number}", "name": name, "input": given}
            reason = "tool_use"
        else:
            block, reason = {"type": "text", "text": "done"}, "end_turn"
        body = {
            "id": "message", "type": "message", "role": "assistant", "model": "scripted",
            "content": [block], "stop_reason": reason, "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        return httpx2.Response(200, json=body)

    async def scenario() -> None:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(respond))
        async with AsyncAnthropic(api_key="none", http_client=http, max_retries=0) as client:
            async with await AsyncEnvironment.connect(url) as environment:
                tools = environment_tools(environment, workdir=str(tmp_path))
                runner = client.beta.messages.tool_runner(
                    model="scripted", max_tokens=100, tools=tools,
                    messages=[{"role": "user", "content": "go"}],
                )
                await runner.until_done()
                for tool in tools:
                    close = getattr(tool, "close", None)
                    if close is not None:
                        await close()

    asyncio.run(scenario())
    assert len(results) == len(calls)
    texts = [text for text, _ in results]
    assert texts[1].strip() == "2"
    assert texts[2].strip() == "kept in a"
    assert results[3] == ("failing\n", True)
    assert texts[5] == "three"
    assert texts[6].endswith("notes.txt:2:three")
    assert texts[7].endswith("a/notes.txt")
    assert results[8][1] and results[9][1]
    assert texts[10].strip() == str(tmp_path)


def with_shell(url: str, scenario: "Callable[[Any], Awaitable[None]]") -> None:
    """Runs a scenario with the shell of the `bash` tool."""
    from exec_server.adapters.anthropic_tools import _Shell

    async def run() -> None:
        async with await AsyncEnvironment.connect(url) as environment:
            shell = _Shell(environment, "/", None)
            await asyncio.wait_for(scenario(shell), 20)
            await shell.close()

    asyncio.run(run())


def test_bash_tool_goes_on_beside_output_of_the_background(url: str, tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def scenario(shell: Any) -> None:
        for number in range(5):
            _, code = await shell.run(f"yes & (exit {number})", 10)
            assert code == number
        assert (await shell.run("kill $(jobs -p); wait", 10))[1] == 0
        assert await shell.run("echo alone; echo error >&2", 10) == ("alone\nerror\n", 0)
        # What came behind the end of a command belongs to the next one.
        output, _ = await shell.run(f"(until [ -e {go} ]; do sleep 0.01; done; echo late) & true", 10)
        assert output == ""
        go.touch()
        output, _ = await shell.run("wait", 10)
        assert output == "late\n"

    with_shell(url, scenario)


def test_cancelled_bash_call_leaves_nothing_to_the_next(url: str, tmp_path: Path) -> None:
    async def scenario(shell: Any) -> None:
        started = tmp_path / "started"
        command = f"echo wrong; touch {started}; sleep 1; echo wrong"
        calling = asyncio.ensure_future(shell.run(command, 10))
        while not started.exists():
            await asyncio.sleep(0.01)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert await shell.run("echo right", 10) == ("right\n", 0)

    with_shell(url, scenario)


@pytest.mark.parametrize(
    "command", ["echo 'open", 'echo "open', "echo $(", "if true", "{ echo", "echo x)", "cat <<end\nx"]
)
def test_unfinished_command_is_an_error_and_not_a_wait(url: str, command: str) -> None:
    async def scenario(shell: Any) -> None:
        await shell.run("name=kept", 10)
        output, code = await shell.run(command, 10)
        if command.startswith("cat"):
            # As bash handles the end of a script there: with a warning.
            assert (output.splitlines()[-1], code) == ("x", 0)
        else:
            assert "unexpected" in output and code != 0
        assert await shell.run("echo $name", 10) == ("kept\n", 0)

    with_shell(url, scenario)
