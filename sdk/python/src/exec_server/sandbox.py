"""Sandbox policies: what a command or a file operation may use.

A policy is a list of entries, of which the most specific one decides about a path. Paths without an
entry do not exist inside the sandbox. What the host cannot enforce is refused, never weakened.

>>> policy = SandboxPolicy.workspace_write(writable=["/srv/app"])
>>> policy = SandboxPolicy(entries=(Entry.root("read"), Entry.path("/srv/app", "write")))
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Iterable, Literal, Optional, Tuple, Union

from ._framing import Json
from ._paths import RemotePath, path_uri

#: What an entry allows.
Access = Literal["read", "write", "deny"]


@dataclass(frozen=True)
class Entry:
    """What a policy says about a path. Use the constructors."""

    access: Access
    #: ``path``, ``glob`` or the name of a special path.
    kind: str
    value: Optional[Union[str, bytes]] = None
    #: Has no effect if the path is missing, instead of failing the call.
    skip_missing: bool = False

    @classmethod
    def path(cls, path: RemotePath, access: Access, skip_missing: bool = False) -> "Entry":
        """A file, or a directory with everything below it."""
        return cls(access, "path", os.fspath(path), skip_missing)

    @classmethod
    def glob(cls, pattern: str) -> "Entry":
        """Denies all paths that match at the time of the call."""
        return cls("deny", "glob", pattern)

    @classmethod
    def root(cls, access: Access) -> "Entry":
        """Every file."""
        return cls(access, "root")

    @classmethod
    def minimal(cls, access: Access = "read") -> "Entry":
        """What almost every program reads: `/usr`, `/etc`, `/lib` and similar."""
        return cls(access, "minimal")

    @classmethod
    def project_roots(cls, access: Access, subpath: Optional[str] = None) -> "Entry":
        """Each workspace root of the policy, or a path below each."""
        return cls(access, "project_roots", subpath)

    @classmethod
    def tmpdir(cls, access: Access = "write") -> "Entry":
        """The directory that `TMPDIR` of the command names."""
        return cls(access, "tmpdir")

    @classmethod
    def slash_tmp(cls, access: Access = "write") -> "Entry":
        """`/tmp`."""
        return cls(access, "slash_tmp")

    def to_wire(self, base: bytes) -> Json:
        """Returns the entry as it travels. Relative paths start at `base`."""
        place: Json
        if self.kind == "path":
            assert self.value is not None
            place = {"type": "path", "path": path_uri(self.value, base)}
        elif self.kind == "glob":
            place = {"type": "glob_pattern", "pattern": self.value}
        else:
            special: Json = {"kind": self.kind}
            if self.value is not None:
                special["subpath"] = self.value
            place = {"type": "special", "value": special}
        entry: Json = {"path": place, "access": self.access}
        if self.skip_missing:
            entry["missing_path_behavior"] = "skip"
        return entry


@dataclass(frozen=True)
class SandboxPolicy:
    """What a command or a file operation may use."""

    #: What is readable, writable or denied. `None`: all files, as without a sandbox.
    entries: Optional[Tuple[Entry, ...]] = None
    #: Whether the network can be used.
    network: bool = False
    #: What entries for project roots expand to.
    workspace_roots: Tuple[RemotePath, ...] = ()
    #: Depth to which patterns look for files.
    glob_depth: Optional[int] = None
    #: Gives a process without network a loopback that only its tree and tunnels can use.
    loopback: bool = False

    @classmethod
    def read_only(cls, network: bool = False, loopback: bool = False) -> "SandboxPolicy":
        """Everything can be read, and nothing written."""
        return cls(entries=(Entry.root("read"),), network=network, loopback=loopback)

    @classmethod
    def workspace_write(
        cls,
        writable: Iterable[RemotePath] = (),
        network: bool = False,
        allow_git: bool = False,
        loopback: bool = False,
    ) -> "SandboxPolicy":
        """Everything can be read, and directories and temporary files be written.

        The working directory of the command is writable, and so is what `writable` names. `.git`,
        `.agents`, `.codex` and `.aws` in a writable directory stay read-only; `allow_git` makes
        `.git` of the working directory writable.
        """
        entries = [
            Entry.root("read"),
            Entry.project_roots("write"),
            Entry.tmpdir(),
            Entry.slash_tmp(),
        ]
        if allow_git:
            entries.append(Entry.project_roots("write", ".git"))
        entries += [Entry.path(path, "write", skip_missing=True) for path in writable]
        return cls(
            entries=tuple(entries), network=network, workspace_roots=(".",), loopback=loopback
        )

    def with_entries(self, *entries: Entry) -> "SandboxPolicy":
        """Returns the policy with more entries."""
        return replace(self, entries=(*(self.entries or ()), *entries))

    def to_wire(self, base: bytes) -> Json:
        """Returns the policy as it travels. Relative paths start at `base`."""
        files: Json = {"type": "unrestricted"}
        if self.entries is not None:
            entries = [entry.to_wire(base) for entry in self.entries]
            files = {"type": "restricted", "entries": entries}
            if self.glob_depth is not None:
                files["glob_scan_max_depth"] = self.glob_depth
        return {
            "permissions": {
                "type": "managed",
                "file_system": files,
                "network": "enabled" if self.network else "restricted",
            },
            "cwd": path_uri(base, b"/"),
            "workspaceRoots": [path_uri(root, base) for root in self.workspace_roots],
            "windowsSandboxLevel": "disabled",
        }

