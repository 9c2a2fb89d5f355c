"""Runs the shared cases of `sdk/cases` on an environment. See the README there."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import exec_server
from exec_server import DEVNULL, PIPE

CASES = Path(__file__).resolve().parents[2] / "cases"
STEP_SECONDS = 20

KINDS = {
    "notFound": exec_server.NotFoundError,
    "invalidRequest": exec_server.InvalidRequestError,
    "invalidParams": (exec_server.InvalidParamsError, ValueError),
    "host": exec_server.HostError,
    "unsupported": exec_server.UnsupportedError,
    "exitStatus": exec_server.CalledProcessError,
    "timeout": exec_server.TimeoutExpired,
    "stdinClosed": exec_server.StdinClosedError,
    "connectionLost": exec_server.ConnectionLostError,
    "closed": exec_server.ClosedError,
}


def load_cases() -> List[Dict[str, Any]]:
    """Returns all cases for Python."""
    cases = []
    for file in sorted(CASES.glob("*.json")):
        for case in json.loads(file.read_text())["cases"]:
            if "python" in case.get("only", ["python"]):
                cases.append(case)
    names = [case["name"] for case in cases]
    assert len(set(names)) == len(names), "two cases have the same name"
    return cases


def to_bytes(value: Any) -> bytes:
    """Returns the bytes that a value of a case stands for."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return b"".join(map(to_bytes, value))
    if "hex" in value:
        return bytes.fromhex(value["hex"])
    if "base64" in value:
        return base64.b64decode(value["base64"])
    return to_bytes(value["repeat"]) * value["times"]


def is_bytes_value(value: Any) -> bool:
    if isinstance(value, dict):
        return bool({"hex", "base64", "repeat"} & value.keys())
    return isinstance(value, list) and all(isinstance(v, str) or is_bytes_value(v) for v in value)


def difference(expected: Any, actual: Any) -> Optional[str]:
    """Returns how a result differs from what a case expects."""
    plain = actual.decode("utf-8", "surrogateescape") if isinstance(actual, bytes) else actual
    if isinstance(actual, (bytes, str)):
        raw = actual if isinstance(actual, bytes) else actual.encode("utf-8", "surrogateescape")
        if isinstance(expected, str) or is_bytes_value(expected):
            wanted = to_bytes(expected)
            return None if raw == wanted else f"{raw[:300]!r} is not {wanted[:300]!r}"
        if isinstance(expected, dict):
            return text_difference(expected, raw)
    if isinstance(expected, dict):
        if "any" in expected:
            return None
        if "min" in expected or "max" in expected:
            low, high = expected.get("min", plain), expected.get("max", plain)
            return None if low <= plain <= high else f"{plain!r} is not in {low} to {high}"
        if "unordered" in expected:
            return unordered_difference(expected["unordered"], actual)
        if "includes" in expected:
            found = any(difference(expected["includes"], item) is None for item in actual)
            return None if found else f"{actual!r} has no {expected['includes']!r}"
        for name, member in expected.items():
            if not isinstance(actual, dict) or name not in actual:
                return f"{actual!r} has no `{name}`"
            found_difference = difference(member, actual[name])
            if found_difference is not None:
                return f"`{name}`: {found_difference}"
        return None
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return f"{actual!r} has {len(actual)} items, not {len(expected)}"
        for wanted, item in zip(expected, actual):
            found_difference = difference(wanted, item)
            if found_difference is not None:
                return found_difference
        return None
    return None if expected == plain else f"{plain!r} is not {expected!r}"


def text_difference(expected: Dict[str, Any], raw: bytes) -> Optional[str]:
    checks: Dict[str, Callable[[Any], bool]] = {
        "contains": lambda value: to_bytes(value) in raw,
        "startsWith": lambda value: raw.startswith(to_bytes(value)),
        "endsWith": lambda value: raw.endswith(to_bytes(value)),
        "matches": lambda value: re.search(value, raw.decode("utf-8", "replace")) is not None,
        "length": lambda value: len(raw) == value,
        "sha256": lambda value: hashlib.sha256(raw).hexdigest() == value,
        "any": lambda value: True,
    }
    for name, value in expected.items():
        if not checks[name](value):
            return f"{raw[:300]!r} ({len(raw)} bytes): not {name} {value!r}"
    return None


def unordered_difference(expected: List[Any], actual: List[Any]) -> Optional[str]:
    left = list(actual)
    for wanted in expected:
        for index, item in enumerate(left):
            if difference(wanted, item) is None:
                del left[index]
                break
        else:
            return f"{actual!r} has no {wanted!r}"
    return f"{left!r} is too much" if left else None


class CaseRunner:
    """Runs one case. The subclass says how a call of the library is awaited."""

    def __init__(self, env: Any, connect: Callable[[], Any], cut: Callable[[], None]) -> None:
        self.env = env
        self._connect = connect
        self._cut = cut
        self.handles: Dict[str, Any] = {}
        self.directory = tempfile.mkdtemp(prefix="exec-case-")

    async def result(self, value: Any) -> Any:
        """Returns the result of a call, which is awaitable or not."""
        return await value if inspect.isawaitable(value) else value

    async def run(self, case: Dict[str, Any]) -> None:
        try:
            steps = json.loads(json.dumps(case["steps"]).replace("$DIR", self.directory))
            await self.run_steps(steps)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    async def run_steps(self, steps: List[Dict[str, Any]]) -> None:
        for number, step in enumerate(steps, 1):
            what = f"step {number} (`{step['do']}`)"
            try:
                operation = getattr(self, "do_" + re.sub("[A-Z]", lambda m: "_" + m[0].lower(), step["do"]))
                result = await asyncio.wait_for(operation(step), STEP_SECONDS)
            except asyncio.TimeoutError:
                raise AssertionError(f"{what} takes too long") from None
            except AssertionError:
                raise
            except Exception as error:
                if "error" not in step:
                    raise AssertionError(f"{what} failed: {error!r}") from error
                assert isinstance(error, KINDS[step["error"]]), f"{what}: {error!r}"
                continue
            assert "error" not in step, f"{what} did not fail: {result!r}"
            if "expect" in step:
                found = difference(step["expect"], result)
                assert found is None, f"{what}: {found}"
            if "as" in step:
                self.handles[step["as"]] = result

    @staticmethod
    def command(step: Dict[str, Any]) -> Dict[str, Any]:
        options: Dict[str, Any] = {}
        for name, option in (("cwd", "cwd"), ("env", "env"), ("extraEnv", "extra_env")):
            if name in step:
                options[option] = step[name]
        if "terminal" in step:
            options["terminal"] = (step["terminal"]["rows"], step["terminal"]["cols"])
        if "sandbox" in step:
            policy = step["sandbox"]
            if policy["preset"] == "read-only":
                sandbox = exec_server.SandboxPolicy.read_only(network=policy.get("network", False))
            else:
                sandbox = exec_server.SandboxPolicy.workspace_write(
                    policy.get("writable", ()), network=policy.get("network", False)
                )
            options["sandbox"] = sandbox
        if "limits" in step:
            snake = {
                re.sub("[A-Z]", lambda m: "_" + m[0].lower(), name): value
                for name, value in step["limits"].items()
            }
            options["limits"] = exec_server.Limits(**snake)
        return options

    async def do_info(self, step: Any) -> Any:
        info = self.env.info
        return {
            "shell": {"name": info.shell_name, "path": info.shell_path},
            "cwd": info.cwd,
            "executorVersion": info.executor_version,
            "platformOs": info.platform,
        }

    async def do_run(self, step: Any) -> Any:
        options = self.command(step)
        if "input" in step:
            options["input"] = to_bytes(step["input"])
        if "timeoutMs" in step:
            options["timeout"] = step["timeoutMs"] / 1000
        done = await self.result(
            self.env.run(
                [to_bytes(argument) for argument in step["argv"]],
                capture_output=True,
                check=step.get("check", False),
                **options,
            )
        )
        return {
            "exitCode": done.returncode,
            "signal": done.signal,
            "cause": done.status.cause,
            "stdout": done.stdout,
            "stderr": done.stderr or b"",
            "sandboxDenied": done.status.sandbox_denied,
        }

    async def do_spawn(self, step: Any) -> Any:
        options = self.command(step)
        for name in ("detached", "durable", "id"):
            if name in step:
                options[name] = step[name]
        if step.get("stdin") == "pipe":
            options["stdin"] = PIPE
        argv = [to_bytes(argument) for argument in step["argv"]]
        return await self.result(self.env.spawn(argv, **options))

    async def do_write(self, step: Any) -> Any:
        data = to_bytes(step["data"])
        await self.result(self.handles[step["on"]].stdin.write(data))

    async def do_close_stdin(self, step: Any) -> Any:
        await self.result(self.handles[step["on"]].stdin.close())

    def stream(self, step: Any) -> Any:
        return getattr(self.handles[step["on"]], step.get("stream", "stdout"))

    async def do_read(self, step: Any) -> Any:
        try:
            return await self.stream(step).readexactly(step["count"])
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def do_read_until(self, step: Any) -> Any:
        try:
            return await self.stream(step).readuntil(to_bytes(step["until"]))
        except asyncio.IncompleteReadError as error:
            raise AssertionError(f"the output ended with {error.partial!r}") from None

    async def do_read_all(self, step: Any) -> Any:
        return await self.result(self.stream(step).read())

    async def do_communicate(self, step: Any) -> Any:
        process = self.handles[step["on"]]
        data = to_bytes(step["input"]) if "input" in step else None
        out, err = await self.result(process.communicate(data))
        return {"stdout": out, "stderr": err, **self.status(process)}

    @staticmethod
    def status(process: Any) -> Dict[str, Any]:
        status = process.status
        return {"exitCode": status.returncode, "signal": status.signal, "cause": status.cause}

    async def do_wait(self, step: Any) -> Any:
        process = self.handles[step["on"]]
        timeout = step["timeoutMs"] / 1000 if "timeoutMs" in step else None
        await self.result(process.wait(timeout=timeout))
        return self.status(process)

    async def do_signal(self, step: Any) -> Any:
        await self.result(self.handles[step["on"]].send_signal(step["signal"]))

    async def do_terminate(self, step: Any) -> Any:
        process = self.handles[step["on"]]
        if "timeoutMs" in step:
            await self.result(process.terminate(timeout=step["timeoutMs"] / 1000))
        else:
            await self.result(process.kill())

    async def do_resize(self, step: Any) -> Any:
        await self.result(self.handles[step["on"]].resize(step["rows"], step["cols"]))

    async def do_attach(self, step: Any) -> Any:
        return await self.result(self.env.attach(step["id"], after_seq=step.get("afterSeq")))

    async def do_list(self, step: Any) -> Any:
        return [
            {
                "id": info.id,
                "argv": info.argv,
                "running": info.running,
                "exitCode": info.returncode,
                "detached": info.detached,
            }
            for info in await self.result(self.env.list())
        ]

    async def do_read_file(self, step: Any) -> Any:
        return await self.result(self.env.read_file(to_bytes(step["path"])))

    async def do_write_file(self, step: Any) -> Any:
        await self.result(
            self.env.write_file(
                to_bytes(step["path"]),
                to_bytes(step["data"]),
                create_parents=step.get("createParents", False),
                atomic=step.get("atomic", False),
                mode=step.get("mode"),
            )
        )

    async def do_read_stream(self, step: Any) -> Any:
        async with await self.env.open(to_bytes(step["path"])) as file:
            blocks = file.blocks(step.get("offset", 0), step.get("length"))
            return b"".join([block async for block in blocks])

    async def do_write_stream(self, step: Any) -> Any:
        async with await self.env.open(to_bytes(step["path"]), "wb") as file:
            for chunk in step["chunks"]:
                await file.write(to_bytes(chunk))

    async def do_metadata(self, step: Any) -> Any:
        found = await self.result(
            self.env.metadata(
                to_bytes(step["path"]), follow_symlinks=step.get("followSymlinks", True)
            )
        )
        return {
            "kind": found.kind,
            "size": found.size,
            "mode": found.mode,
            "modifiedAtMs": found.modified_at_ms,
            "linkTarget": found.link_target,
        }

    async def do_exists(self, step: Any) -> Any:
        return await self.result(self.env.exists(to_bytes(step["path"])))

    async def do_set_metadata(self, step: Any) -> Any:
        await self.result(
            self.env.set_metadata(
                to_bytes(step["path"]),
                mode=step.get("mode"),
                modified_at_ms=step.get("modifiedAtMs"),
            )
        )

    async def do_make_directory(self, step: Any) -> Any:
        path = to_bytes(step["path"])
        await self.result(self.env.make_directory(path, parents=step.get("parents", True)))

    async def do_remove(self, step: Any) -> Any:
        await self.result(
            self.env.remove(
                to_bytes(step["path"]),
                recursive=step.get("recursive", False),
                missing_ok=step.get("missingOk", False),
            )
        )

    async def do_rename(self, step: Any) -> Any:
        await self.result(
            self.env.rename(
                to_bytes(step["source"]),
                to_bytes(step["destination"]),
                overwrite=step.get("overwrite", False),
            )
        )

    async def do_copy(self, step: Any) -> Any:
        await self.result(
            self.env.copy(
                to_bytes(step["source"]),
                to_bytes(step["destination"]),
                recursive=step.get("recursive", False),
            )
        )

    async def do_symlink(self, step: Any) -> Any:
        await self.result(self.env.symlink(to_bytes(step["target"]), to_bytes(step["path"])))

    async def do_realpath(self, step: Any) -> Any:
        return await self.result(self.env.realpath(to_bytes(step["path"])))

    async def do_read_directory(self, step: Any) -> Any:
        entries = await self.result(self.env.read_directory(to_bytes(step["path"])))
        return [{"name": entry.name, "kind": entry.kind} for entry in entries]

    async def do_walk(self, step: Any) -> Any:
        options = {"max_depth": step["maxDepth"]} if "maxDepth" in step else {}
        found = await self.result(self.env.walk(to_bytes(step["path"]), **options))
        return [{"path": entry.path, "kind": entry.kind} for entry in found.entries]

    async def do_search(self, step: Any) -> Any:
        found = await self.result(
            self.env.search(
                step["pattern"],
                to_bytes(step["path"]),
                regex=step.get("regex", False),
                case_sensitive=step.get("caseSensitive", True),
                glob=step.get("glob"),
                max_matches=step.get("maxMatches"),
                context_lines=step.get("contextLines", 0),
            )
        )
        return {"matches": [vars(match) for match in found.matches], "truncated": found.truncated}

    async def do_find(self, step: Any) -> Any:
        found = await self.result(
            self.env.find(
                to_bytes(step["path"]),
                glob=step.get("glob"),
                query=step.get("query"),
                max_results=step.get("maxResults"),
            )
        )
        return {"paths": found.paths, "truncated": found.truncated}

    async def do_watch(self, step: Any) -> Any:
        return await self.result(
            self.env.watch(to_bytes(step["path"]), recursive=step.get("recursive", True))
        )

    async def do_await_change(self, step: Any) -> Any:
        wanted = to_bytes(step["path"]).decode()
        async for event in self.handles[step["on"]]:
            for change in event.changes:
                if change.path == wanted and change.kind == step.get("kind", change.kind):
                    return
        raise AssertionError("the watch ended")

    async def do_close_watch(self, step: Any) -> Any:
        await self.result(self.handles[step["on"]].close())

    async def do_listen(self, step: Any) -> Any:
        return await self.result(self.env.listen())

    async def do_accept(self, step: Any) -> Any:
        return await self.result(self.handles[step["on"]].accept())

    async def do_open_tunnel(self, step: Any) -> Any:
        port = step["port"]
        if isinstance(port, dict):
            port = self.handles[port["portOf"]].port
        return await self.result(self.env.open_tunnel(port))

    async def do_tunnel_write(self, step: Any) -> Any:
        await self.result(self.handles[step["on"]].write(to_bytes(step["data"])))

    async def do_tunnel_read(self, step: Any) -> Any:
        data = b""
        while len(data) < step["count"]:
            part = await self.result(self.handles[step["on"]].read(step["count"] - len(data)))
            if not part:
                break
            data += part
        return data

    async def do_tunnel_read_all(self, step: Any) -> Any:
        return await self.result(self.handles[step["on"]].read_all())

    async def do_tunnel_end(self, step: Any) -> Any:
        await self.result(self.handles[step["on"]].write_eof())

    async def do_tunnel_close(self, step: Any) -> Any:
        await self.result(self.handles[step["on"]].close())

    async def do_listener_close(self, step: Any) -> Any:
        await self.result(self.handles[step["on"]].close())

    async def do_close(self, step: Any) -> Any:
        await self.result(self.env.close())

    async def do_cut(self, step: Any) -> Any:
        self._cut()

    async def do_reconnect(self, step: Any) -> Any:
        await self.result(self.env.close())
        self.env = await self.result(self._connect())

    async def do_parallel(self, step: Any) -> Any:
        await asyncio.gather(*(self.run_steps(branch) for branch in step["branches"]))


class SyncCaseRunner(CaseRunner):
    """Runs a case on a synchronous environment. Each step is a call on a thread."""

    async def run_steps(self, steps: List[Dict[str, Any]]) -> None:
        # A branch of its own thread: the calls block.
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: asyncio.run(super(SyncCaseRunner, self).run_steps(steps))
        )

    async def do_read(self, step: Any) -> Any:
        return self.stream(step).read(step["count"])

    async def do_read_until(self, step: Any) -> Any:
        until, data, stream = to_bytes(step["until"]), b"", self.stream(step)
        while not data.endswith(until):
            byte = stream.read(1)
            assert byte, f"the output ended with {data!r}"
            data += byte
        return data

    async def do_read_stream(self, step: Any) -> Any:
        with self.env.open(to_bytes(step["path"])) as file:
            file.seek(step.get("offset", 0))
            return file.read(step.get("length", -1))

    async def do_write_stream(self, step: Any) -> Any:
        with self.env.open(to_bytes(step["path"]), "wb") as file:
            for chunk in step["chunks"]:
                file.write(to_bytes(chunk))

    async def do_await_change(self, step: Any) -> Any:
        wanted = to_bytes(step["path"]).decode()
        for event in self.handles[step["on"]]:
            for change in event.changes:
                if change.path == wanted and change.kind == step.get("kind", change.kind):
                    return
        raise AssertionError("the watch ended")


assert DEVNULL != PIPE
