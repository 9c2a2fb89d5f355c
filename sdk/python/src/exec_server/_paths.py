"""Native paths and the `file:` URIs that stand for them on the wire.

A native path is a string or bytes, as in :mod:`os`: bytes that are not UTF-8 are surrogate escapes
in a string.
"""

from __future__ import annotations

import base64
import os
from typing import Union
from urllib.parse import quote_from_bytes, unquote_to_bytes

from .errors import ProtocolError

#: A path on the host of the server. A relative one starts at the environment's directory.
RemotePath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

_SCHEME = "file://"
_OPAQUE = "file:///%00/bad/path/"


def native_bytes(path: RemotePath) -> bytes:
    """Returns the bytes of a path.

    Raises:
        ValueError: The path is empty.
    """
    raw = os.fspath(path)
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogateescape")
    if not raw:
        raise ValueError("a path is empty: use `.` for the working directory")
    return raw


def native_text(raw: bytes) -> str:
    """Returns a path as a string."""
    return raw.decode("utf-8", "surrogateescape")


def path_uri(path: RemotePath, base: bytes) -> str:
    """Returns the URI of a path, which starts at the absolute path `base` if it is relative."""
    raw = native_bytes(path)
    if not raw.startswith(b"/"):
        raw = base.rstrip(b"/") + b"/" + raw
    return _SCHEME + quote_from_bytes(raw) if _is_ordinary(raw) else _opaque_uri(raw)


def uri_path(uri: object) -> bytes:
    """Returns the path that a URI of the server stands for."""
    if not isinstance(uri, str) or not uri.startswith(_SCHEME + "/"):
        raise ProtocolError(f"not a path URI: {uri!r}")
    if uri.startswith(_OPAQUE):
        text = uri[len(_OPAQUE) :]
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return unquote_to_bytes(uri[len(_SCHEME) :])


def _is_ordinary(raw: bytes) -> bool:
    """Returns whether an ordinary URI can express a path: no NUL, and no name like a drive."""
    first = raw.lstrip(b"/").split(b"/", 1)[0]
    is_drive = len(first) == 2 and first[:1].isalpha() and first[1:] == b":"
    return b"\0" not in raw and not is_drive


def _opaque_uri(raw: bytes) -> str:
    return _OPAQUE + base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
