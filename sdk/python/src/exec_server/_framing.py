"""Messages as they travel: JSON text, and raw data beside a JSON header (extension `binaryData`)."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Dict, Optional, Tuple, Union

from .errors import ProtocolError

Json = Dict[str, Any]
Buffer = Union[bytes, bytearray, memoryview]
#: A received message, which nothing else changes.
ReceivedMessage = Union[bytes, bytearray]

#: First byte of a message with raw data. No JSON text begins with it.
_BINARY_MARK = 0x01
_PREFIX_BYTES = 4

#: The member of each message that holds bytes, in parameters and in results.
PARAMS_DATA = {
    "process/output": "chunk",
    "process/write": "chunk",
    "fs/writeBlock": "chunk",
    "fs/writeFile": "dataBase64",
    "tunnel/data": "chunk",
}
RESULT_DATA = {"fs/readFile": "dataBase64", "fs/readBlock": "chunk"}

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def encode_message(message: Json, data: Optional[Buffer], raw: bool) -> Tuple[bytes, bool]:
    """Returns a message as bytes, and whether it is a binary one.

    ``data`` is the value of the data member of the parameters. It is put into them as base64 unless
    ``raw``.
    """
    if data is None:
        return _encode(message).encode("ascii"), False
    if raw:
        header = _encode(message).encode("ascii")
        prefix = bytes((_BINARY_MARK,)) + len(header).to_bytes(3, "big")
        return b"".join((prefix, header, data)), True
    text = base64.b64encode(data).decode("ascii")
    member = PARAMS_DATA[message["method"]]
    message = {**message, "params": {**message["params"], member: text}}
    return _encode(message).encode("ascii"), False


def decode_message(frame: ReceivedMessage) -> Tuple[Json, Optional[bytes]]:
    """Returns a received message and the raw data beside it.

    Raises:
        ProtocolError: The frame is not a message.
    """
    data: Optional[bytes] = None
    text: ReceivedMessage = frame
    if frame[:1] == b"\x01":
        end = _PREFIX_BYTES + int.from_bytes(frame[1:_PREFIX_BYTES], "big")
        if end > len(frame):
            raise ProtocolError("a message is shorter than its header")
        # One copy of the data.
        text, data = frame[_PREFIX_BYTES:end], bytes(memoryview(frame)[end:])
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError("a message is not an object")
    return message, data


def decode_base64(text: object, what: str) -> bytes:
    """Decodes a base64 member."""
    if not isinstance(text, str):
        raise ProtocolError(f"{what} has no data")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError(f"{what} is not base64") from None
