"""A server of a later version: what this client does not know is passed on or ignored."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
from typing import Any, Dict, Iterator, List

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from exec_server import PIPE, AsyncEnvironment, Environment, ProtocolError, RemoteError

NEW = {"addedLater": {"nested": [1]}}
USAGE = {"wallMs": 1, "userMs": 1, "systemMs": 1, "maxRssBytes": 1, **NEW}


class NewerServer:
    """Answers as a later version might."""

    url = ""

    def __init__(self) -> None:
        #: What the client sent, without the calls.
        self.received: List[Dict[str, Any]] = []
        self.connections = 0

    def handle(self, connection: ServerConnection) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionClosed):
            for text in connection:
                message = json.loads(text)
                if "id" not in message or "method" not in message:
                    self.received.append(message)
                    continue
                answer = getattr(self, message["method"].replace("/", "_"), None)
                if answer is None:
                    error = {"code": -32601, "message": "unknown", **NEW}
                    connection.send(json.dumps({"id": message["id"], "error": error}))
                    continue
                reply, *notifications = answer(message["params"])
                connection.send(json.dumps({"id": message["id"], **NEW, **reply}))
                for notification in notifications:
                    connection.send(json.dumps(notification))

    def initialize(self, params: Any) -> Any:
        result = {
            "sessionId": "s",
            "extensions": ["acknowledge", "fileDetails", "tunnels", "telepathy"],
            "server": {"name": "later", "version": "9.0", **NEW},
            "sessionTtlMs": 80_000,
            "environmentInfo": {
                "shell": {"name": "nu", "path": "/bin/nu", **NEW},
                "cwd": "file:///",
                "platformOs": "plan9",
                "capabilities": {"teleport": True},
                **NEW,
            },
            **NEW,
        }
        return [{"result": result}]

    def process_start(self, params: Any) -> Any:
        def event(method: str, **more: Any) -> Any:
            return {"method": method, "params": {"processId": params["processId"], **NEW, **more}}

        chunk = base64.b64encode(b"known").decode()
        return [
            {"result": {"processId": params["processId"], **NEW}},
            event("process/started", osPid=7, startedAtMs=1),
            event("process/hibernated"),
            {"method": "weather/changed", "params": {"to": "rain"}},
            {"method": "weather/cleared"},
            {"id": "ask-1", "method": "user/ask", "params": {"text": "sure?"}},
            event("process/output", seq=1, stream="stdout", chunk=chunk, encoding="none"),
            event("process/output", seq=2, stream="telemetry", chunk=chunk),
            event("process/exited", seq=3, exitCode=4, signal="SIGNEW", cause="evaporated", usage=USAGE),
            event("process/closed", seq=4),
        ]

    def process_write(self, params: Any) -> Any:
        return [{"result": {"status": "postponed"}}]

    def process_list(self, params: Any) -> Any:
        process = {
            "processId": "p", "argv": ["x"], "cwd": "file:///", "tty": False, "running": True,
            "state": "hibernating", "exitCode": None, "startedAtMs": 1, "detached": False,
            "usage": USAGE, **NEW,
        }
        return [{"result": {"processes": [process], **NEW}}]

    def fs_readFile(self, params: Any) -> Any:
        return [{"error": {"code": -32055, "message": "frozen", "data": {"until": 7}}}]

    def fs_getMetadata(self, params: Any) -> Any:
        flags = {"isFile": False, "isDirectory": False, "isSymlink": False, "isPortal": True}
        return [{"result": {**flags, "size": 1, "createdAtMs": 0, "modifiedAtMs": 0, **NEW}}]

    def fs_readDirectory(self, params: Any) -> Any:
        entry = {"fileName": "x", "isFile": False, "isDirectory": False, "kind": "portal", **NEW}
        return [{"result": {"entries": [entry], "nextCursor": None, **NEW}}]

    def fs_watch(self, params: Any) -> Any:
        changes = [{"path": "file:///x", "kind": "teleported", **NEW}]
        changed = {"watchId": params["watchId"], "changes": changes, "overflow": False, **NEW}
        return [{"result": NEW}, {"method": "fs/changed", "params": changed}]

    def fs_unwatch(self, params: Any) -> Any:
        return [{"result": NEW}]

    def tunnel_open(self, params: Any) -> Any:
        event = {"tunnelId": params["tunnelId"], "seq": 1}
        chunk = base64.b64encode(b"known").decode()
        return [
            {"result": NEW},
            {"method": "tunnel/paused", "params": event},
            {"method": "tunnel/data", "params": {**event, "chunk": chunk, **NEW}},
        ]

    def weather_get(self, params: Any) -> Any:
        return [{"result": {"is": "fine"}}]


@pytest.fixture
def newer() -> Iterator[NewerServer]:
    newer = NewerServer()
    with serve(newer.handle, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        newer.url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        yield newer
        server.shutdown()
        thread.join()


def test_unknown_parts_of_a_newer_protocol_break_nothing(newer: NewerServer) -> None:
    async def run() -> None:
        async with await AsyncEnvironment.connect(newer.url) as env:
            assert "telepathy" in env.extensions and env.server_version == "later 9.0"
            assert env.info.platform == "plan9" and env.info.capabilities["teleport"] is True

            done = await env.run(["x"], capture_output=True)
            assert (done.stdout, done.stderr, done.returncode) == (b"known", b"", 4)
            assert (done.signal, done.status.cause) == ("SIGNEW", "evaporated")

            assert [info.state for info in await env.list()] == ["hibernating"]
            assert (await env.metadata("/x")).kind == "other"
            assert [entry.kind for entry in await env.read_directory("/")] == ["other"]
            async with await env.watch("/") as watch:
                assert [change.kind for change in (await anext(watch)).changes] == ["teleported"]
            tunnel = await env.open_tunnel(1)
            assert await tunnel.read() == b"known"
            tunnel.abort()
            assert await env.request("weather/get") == {"is": "fine"}

            with pytest.raises(RemoteError, match="frozen") as refused:
                await env.read_file("/x")
            assert type(refused.value) is RemoteError and refused.value.code == -32055
            assert env.connections == 1

    asyncio.run(asyncio.wait_for(run(), 20))
    assert newer.connections == 1
    answers = [message for message in newer.received if message.get("id") == "ask-1"]
    assert [answer["error"]["code"] for answer in answers] == [-32601]
    # Output of an unknown stream is acknowledged with the rest.
    acks = [it["params"] for it in newer.received if it.get("method") == "process/acknowledge"]
    assert max(ack["seq"] for ack in acks) == 4


def test_unknown_status_of_a_write_is_a_typed_error(newer: NewerServer) -> None:
    with Environment.connect(newer.url) as env:
        process = env.spawn(["x"], stdin=PIPE)
        assert process.stdin is not None
        with pytest.raises(ProtocolError, match="postponed"):
            process.stdin.write(b"x")
