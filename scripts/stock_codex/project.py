"""The project that the CLI works on through the server, and files that only the server can read.

The CLI and the server share one disk. What tells them apart is a link below `/proc/self/cwd`: the
kernel resolves it by the process that reads it, and only the server has its working directory
where the file is.
Not here: what the CLI does with the files (`file_conversations`).
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Dict, Tuple

# 3 MB, which the CLI passes on as they are.
IMAGE_SIDE = 1000
# 27 MB: the CLI takes frames up to 16 MiB, and messages up to 64 MiB.
LARGE_IMAGE_SIDE = 3000
PNG = b"\x89PNG\r\n\x1a\n"
# The mode and content of files by their names.
Tree = Dict[str, Tuple[int, bytes]]


class Project:
    """A folder with a `.git`, in which the work directory is one folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.work = folder / "work"
        self.outside = folder / "outside"
        self._server = folder / "host"
        # The CLI looks for instructions from here down to the work directory.
        (folder / ".git").mkdir()
        self.outside.mkdir()

    def add(self, name: str, content: bytes, executable: bool = False) -> None:
        """Writes a file of the work directory."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if executable:
            path.chmod(path.stat().st_mode | 0o111)

    def add_for_server(self, name: str, content: bytes) -> None:
        """Makes a file of the work directory that is missing for every process but the server."""
        (self._server / name).write_bytes(content)
        (self.work / name).symlink_to(Path("/proc/self/cwd") / name)

    def add_outside(self, name: str, content: bytes) -> None:
        """Writes a file of a folder beside the work directory, in which `link` leads there."""
        (self.outside / name).write_bytes(content)
        (self.work / "link").symlink_to(Path("..") / self.outside.name)

    def tree(self) -> Tree:
        """Returns the mode and content of every file of the work directory, links left out."""
        return tree_of(self.work)

    def tree_outside(self) -> Tree:
        """Returns the same of the folder beside it."""
        return tree_of(self.outside)


class SharedProject(Project):
    """A project for a server whose working directory is `/`: the CLI can read all of its files."""

    def add_for_server(self, name: str, content: bytes) -> None:
        """Writes a file of the work directory."""
        self.add(name, content)


def tree_of(folder: Path) -> Tree:
    """Returns the mode and content of every file of a folder, links left out."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            name = str(path.relative_to(folder))
            found[name] = (path.stat().st_mode & 0o777, path.read_bytes())
    return found


def picture(side: int) -> bytes:
    """Returns a square PNG of noise, which does not compress: three bytes for each pixel."""
    pixels = b"".join(b"\0" + os.urandom(side * 3) for _ in range(side))
    # Eight bits each of red, green and blue, not interlaced.
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels, 0)) + chunk(b"IEND", b"")
    return PNG + body


def chunk(kind: bytes, data: bytes) -> bytes:
    """Returns one chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
