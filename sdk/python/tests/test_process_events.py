"""The order, the buffering and the acknowledgement of events, without a server."""

from __future__ import annotations

import base64
from typing import Any, Dict, List, Tuple, cast

from exec_server._client import Client
from exec_server._process_events import ProcessEvents
from exec_server.errors import ExecServerError


class RecordingClient:
    """Takes what a process asks of its client."""

    acknowledges = True

    def __init__(self) -> None:
        self.reads: List[Tuple[int, Any]] = []
        self.acks: List[int] = []
        self.released = 0
        self.attached = 0
        self.failures: List[ExecServerError] = []

    def read_output(self, events: ProcessEvents, after: int, limit: Any) -> None:
        self.reads.append((after, limit))

    def acknowledge(self, process_id: str, seq: int) -> None:
        self.acks.append(seq)

    def handle_buffered(self, change: int) -> None:
        pass

    def handle_process_closed(self, events: ProcessEvents, seq: int) -> None:
        self.acks.append(seq)

    def fail_process(self, events: ProcessEvents, error: ExecServerError) -> None:
        events.fail(error)
        self.failures.append(error)

    def call_soon(self, callback: Any) -> None:
        callback()

    def release(self, events: ProcessEvents) -> None:
        self.released += 1

    def reattach(self, events: ProcessEvents) -> None:
        self.attached += 1


def started(server_owned: bool = False) -> Tuple[RecordingClient, ProcessEvents]:
    client = RecordingClient()
    events = ProcessEvents(cast(Client, client), "p", server_owned)
    events.stream("stdout")
    events.stream("stderr")
    return client, events


def output(events: ProcessEvents, seq: int, data: bytes, stream: str = "stdout") -> None:
    events.handle_output({"seq": seq, "stream": stream}, data)


def page(first: int, count: int, size: int, **more: Any) -> Dict[str, Any]:
    chunk = base64.b64encode(b"x" * size).decode()
    chunks = [
        {"seq": first + index, "stream": "stdout", "chunk": chunk} for index in range(count)
    ]
    return {"chunks": chunks, "nextSeq": first + count, "exited": False, **more}


def taken(events: ProcessEvents) -> bytes:
    chunks = events.stream("stdout").chunks
    return b"".join(events.stream("stdout").pop() or b"?" for _ in range(len(chunks)))


def test_events_are_put_in_order_and_repeated_ones_dropped() -> None:
    client, events = started()
    for seq in (1, 3, 2, 2, 1, 3, 4):
        output(events, seq, b"%d" % seq)
    assert taken(events) == b"1234"
    assert events.order.last == 4 and not client.failures


def test_gap_is_read_once_and_missing_output_is_lost() -> None:
    client, events = started()
    output(events, 3, b"3")
    output(events, 4, b"4")
    assert client.reads == [(0, None)]
    events.handle_page(page(2, 1, 1))
    text = "process p: `process/read` ends at 2, but event 3 was received"
    assert [str(error) for error in client.failures] == [text]


def test_page_of_a_resume_brings_output_exit_and_close() -> None:
    client, events = started()
    output(events, 1, b"1")
    events.begin_resume()
    assert client.reads == [(1, None)]
    events.handle_page(page(2, 2, 1, exitCode=3, exitSeq=4, closed=True) | {"nextSeq": 6})
    assert taken(events) == b"1xx"
    assert events.exit is not None and events.exit["exitCode"] == 3 and events.is_closed
    assert client.acks[-1] == 5


def test_exit_without_a_number_is_the_missing_one() -> None:
    client, events = started()
    output(events, 3, b"late")
    events.handle_page(page(1, 1, 1, exitCode=0, closed=True) | {"nextSeq": 5})
    assert events.exit is not None and events.is_closed and not client.failures


def test_large_page_without_room_goes_on_when_there_is_some() -> None:
    client, events = started()
    events.begin_resume()
    events.handle_page(page(1, 20, 64 << 10))
    # More than a mebibyte waits, so nothing more is read, and nothing is invented.
    assert client.reads == [(0, None)]
    while events.buffered >= 1 << 20:
        events.stream("stdout").pop()
    assert client.reads[-1] == (20, None)
    events.handle_page({"chunks": [], "nextSeq": 21, "exited": False})
    assert not client.failures


def test_acknowledgement_stops_at_the_first_unread_chunk() -> None:
    client, events = started()
    output(events, 1, b"e", "stderr")
    for seq in range(2, 6):
        output(events, seq, b"x" * (32 << 10))
    taken(events)
    assert client.acks == []
    events.stream("stderr").pop()
    events.acknowledge()
    assert client.acks == [5]


def test_acknowledgement_is_repeated_on_a_new_connection() -> None:
    client, events = started()
    output(events, 1, b"x" * (64 << 10))
    taken(events)
    assert client.acks == [1]
    events.begin_resume()
    assert client.acks == [1, 1]


def test_detached_process_is_released_while_its_reader_lags() -> None:
    client, events = started(server_owned=True)
    for seq in range(1, 20):
        output(events, seq, b"x" * (64 << 10))
    assert (client.released, client.attached) == (1, 0)
    taken(events)
    assert (client.released, client.attached) == (1, 1)
    assert client.acks == []


def test_evicted_output_of_a_detached_process_is_marked() -> None:
    _, events = started(server_owned=True)
    output(events, 1, b"1")
    output(events, 5, b"5")
    assert taken(events) == b"1?5"


def test_oversized_chunk_fails_only_its_process() -> None:
    client, events = started()
    output(events, 1, b"x" * ((1 << 20) + 1))
    assert len(client.failures) == 1 and events.failure is not None
