"""A mock of the OpenAI Responses API that plays a scripted model on loopback.

A conversation is a generator: it yields the items of a model turn, is sent what the CLI answered
to them, and returns the closing text. It runs inside the CLI's requests, one at a time.
Invariant: nothing leaves the machine. The mock is also the HTTP proxy of the CLI, and refuses
every other host.
Not here: which tool to call (`tools`), what to ask and expect (`conversations`).
"""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any, Callable, Dict, Generator, List, Optional

Item = Dict[str, Any]
# Yields tool calls, receives their outputs by call id, returns the text of the last turn.
Conversation = Generator[List[Item], Dict[str, Any], str]


class Model:
    """Serves `POST /v1/responses` with the turns of one conversation."""

    def __init__(self, start: Callable[[Item], Conversation]) -> None:
        self.requests: List[Item] = []
        self.refused: List[str] = []
        self.failure: Optional[BaseException] = None
        self.answer: Optional[str] = None
        self._start = start
        self._script: Optional[Conversation] = None
        self._turn: List[Item] = []
        self._lock = threading.Lock()
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        """Returns the port of the API."""
        return self._http.server_address[1]

    def close(self) -> None:
        """Stops serving."""
        self._http.shutdown()
        self._http.server_close()

    def respond(self, request: Item) -> List[Item]:
        """Returns the items of the model turn that follows `request`."""
        with self._lock:
            self.requests.append(request)
            outputs = {
                item["call_id"]: item.get("output")
                for item in request.get("input", [])
                if str(item.get("type", "")).endswith("_call_output")
            }
            calls = [item["call_id"] for item in self._turn if "call_id" in item]
            if self._turn and not all(call in outputs for call in calls):
                # The CLI lost the stream and asks for the same turn again.
                return self._turn
            self._turn = self._advance(request, {call: outputs[call] for call in calls})
            return self._turn

    def _advance(self, request: Item, outputs: Dict[str, Any]) -> List[Item]:
        try:
            if self._script is None:
                self._script = self._start(request)
                return next(self._script)
            return self._script.send(outputs)
        except StopIteration as end:
            self.answer = end.value
        except Exception as error:  # shown as a failed check by the scenario
            self.failure = error
        text = self.answer or "the conversation failed"
        content = [{"type": "output_text", "text": text}]
        return [{"type": "message", "id": "msg_end", "role": "assistant", "content": content}]

    def _handler(self) -> type:
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                if self.path != "/v1/responses":
                    return self._refuse()
                items = model.respond(json.loads(body))
                self._send(200, "text/event-stream", events(len(model.requests), items))

            def do_GET(self) -> None:
                self._refuse()

            def do_CONNECT(self) -> None:
                self._refuse()

            def _refuse(self) -> None:
                model.refused.append(f"{self.command} {self.path}")
                self.close_connection = True
                self._send(404, "text/plain", b"not part of the mock\n")

            def _send(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler


def events(number: int, items: List[Item]) -> bytes:
    """Returns a whole response as server-sent events."""
    response = {"id": f"resp_{number}"}
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    stream = [{"type": "response.created", "response": response}]
    for index, item in enumerate(items):
        stream.append({"type": "response.output_item.done", "output_index": index, "item": item})
    stream.append({"type": "response.completed", "response": {**response, "usage": usage}})
    text = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in stream)
    return text.encode()
