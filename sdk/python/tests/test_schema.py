"""The client sends and reads what the generated schema of the protocol says."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Optional, Set, Tuple

import jsonschema
import pytest
from case_runner import CaseRunner, load_cases
from conftest import ROOT, CuttingProxy, Server

from exec_server import PIPE, AsyncEnvironment, Limits, SandboxPolicy, _client
from exec_server.sandbox import Entry

SCHEMA = json.loads((ROOT / "docs/schema/exec-server.schema.json").read_text())


@lru_cache(maxsize=None)
def validator(reference: str) -> Any:
    return jsonschema.Draft202012Validator({"$ref": reference, "$defs": SCHEMA["$defs"]})


def resolved(schema: Any) -> Any:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def properties(schema: Any) -> Optional[Dict[str, Any]]:
    """Returns the members of an object, or `None` if the schema does not list them."""
    schema = resolved(schema)
    found: Dict[str, Any] = dict(schema.get("properties", {}))
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        found.update(properties(choice) or {})
    return found or None


def unknown_members(value: Any, schema: Any, where: str) -> Set[str]:
    """Returns the members of a value that the schema does not name."""
    schema = resolved(schema)
    if isinstance(value, list):
        items = schema.get("items", {})
        return {name for item in value for name in unknown_members(item, items, where)}
    known = properties(schema)
    if not isinstance(value, dict) or known is None:
        return set()
    found = {f"{where}.{name}" for name in value if name not in known}
    for name, member in value.items():
        if name in known:
            found |= unknown_members(member, known[name], f"{where}.{name}")
    return found


class CheckedResult(Dict[str, Any]):
    """A result that fails if a member is read that the schema does not have."""

    def __init__(self, value: Dict[str, Any], schema: Any) -> None:
        super().__init__(value)
        self._known = properties(schema)

    def _checked(self, name: str, value: Any) -> Any:
        if self._known is None:
            return value
        assert name in self._known, f"the schema has no `{name}`"
        return wrapped(value, self._known[name])

    def __getitem__(self, name: str) -> Any:
        return self._checked(name, super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        return self._checked(name, super().get(name, default))


def wrapped(value: Any, schema: Any) -> Any:
    schema = resolved(schema)
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if isinstance(value, dict) and properties(choice):
            return CheckedResult(value, schema)
        if isinstance(value, list) and "items" in resolved(choice):
            schema = resolved(choice)
    if isinstance(value, dict) and properties(schema):
        return CheckedResult(value, schema)
    if isinstance(value, list):
        return [wrapped(item, schema.get("items", {})) for item in value]
    return value


def test_messages_of_the_client_match_the_schema(
    server: Server, proxy: CuttingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: Set[str] = set()
    counts: Counter[str] = Counter()
    send = _client.Client._send
    handle_response = _client.Client._handle_response
    handle_notification = _client.Client._handle_notification
    handshake = _client.Client._handshake

    def checked_send(self: Any, message: Dict[str, Any], data: Any = None) -> None:
        method = message.get("method")
        if method is not None:
            kind = "x-requests" if "id" in message else "x-notifications"
            schema = SCHEMA[kind][method]["params"]
            validator(schema["$ref"]).validate(message["params"])
            found = unknown_members(message["params"], schema, method)
            assert not found, f"the schema does not know {found}"
            used.add(method)
        send(self, message, data)

    def checked_response(self: Any, message: Dict[str, Any], data: Any) -> None:
        call = self._calls.get(message.get("id", -1))
        if call is not None and "result" in message:
            schema = SCHEMA["x-requests"][call.method]["result"]
            validator(schema["$ref"]).validate(message["result"])
            message = {**message, "result": wrapped(message["result"], schema)}
        handle_response(self, message, data)

    def checked_notification(self: Any, method: str, params: Any, data: Any) -> None:
        schema = SCHEMA["x-notifications"][method]["params"]
        counts[method] += 1
        if counts[method] < 200:
            validator(schema["$ref"]).validate(params)
        handle_notification(self, method, wrapped(params, schema), data)
        used.add(method)

    async def checked_handshake(self: Any, resume: Any) -> Tuple[Any, Any]:
        link, result = await handshake(self, resume)
        schema = SCHEMA["x-requests"]["initialize"]["result"]
        validator(schema["$ref"]).validate(result)
        return link, wrapped(result, schema)

    monkeypatch.setattr(_client.Client, "_send", checked_send)
    monkeypatch.setattr(_client.Client, "_handle_response", checked_response)
    monkeypatch.setattr(_client.Client, "_handle_notification", checked_notification)
    monkeypatch.setattr(_client.Client, "_handshake", checked_handshake)

    async def run() -> None:
        async def connect() -> AsyncEnvironment:
            return await AsyncEnvironment.connect(proxy.url)

        for case in load_cases():
            is_large = any(word in case["name"] for word in ("hundred", "megabytes", "thousands"))
            if is_large or '"invalidParams"' in json.dumps(case):
                continue
            runner = CaseRunner(await connect(), connect, proxy.cut)
            try:
                await runner.run(case)
            finally:
                await runner.env.close()
        # What the cases do not use.
        async with await connect() as env:
            assert env.info.cwd and env.server_version
            policy = SandboxPolicy(
                entries=(
                    Entry.root("read"),
                    Entry.glob("**/*.secret"),
                    Entry.minimal(),
                    Entry.project_roots("write", "src"),
                    Entry.path("sub", "write", skip_missing=True),
                ),
                workspace_roots=(tmp_path,),
                glob_depth=3,
            )
            limits = Limits(60_000, 60_000, 60_000, 1 << 30, 1000, 100, 1 << 30)
            process = await env.spawn(
                ["cat"], stdin=PIPE, sandbox=policy, limits=limits, cwd=tmp_path, arg0="dog"
            )
            snapshot = await process.snapshot()
            assert snapshot.running and not snapshot.truncated
            for info in await env.list(all=True):
                assert info.state
            await process.kill()
            await process.wait_closed()
            await env.walk(tmp_path)
            await env.request("server/status")

    asyncio.run(run())
    assert len(used) > 25, used
