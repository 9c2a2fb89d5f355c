"""The programs under test: releases of the CLI from npm and our server from cargo.

Invariant: nothing is kept in the project, and nothing below a directory for temporary files, where
the CLI does without its helpers.

Not here: running them (`cli`, `server`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
CACHE_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
CACHE = CACHE_HOME / "exec-server" / "stock-codex"
PACKAGE = "@openai/codex"
# The oldest release that we work with. The newest is whatever npm calls `latest`.
OLDEST = "0.166.0"
NEWEST = "latest"


class Missing(Exception):
    """A program is not there and cannot be made; the message says what to do."""


def check_cache() -> None:
    """Refuses a cache that lies in the project or below a directory for temporary files."""
    places = [ROOT, Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path(tempfile.gettempdir())]
    cache = CACHE.resolve()
    for place in places:
        if place.resolve() in (cache, *cache.parents):
            raise Missing(f"{CACHE} is below {place}; set XDG_CACHE_HOME to another directory")


def resolve_version(version: str) -> str:
    """Returns the number of a version that may be a tag such as `latest`, which moves."""
    if version[:1].isdigit():
        return version
    require_npm()
    command = ["npm", "view", "--loglevel=error", f"{PACKAGE}@{version}", "version"]
    found = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    number = found.stdout.strip()
    if found.returncode != 0 or not number[:1].isdigit():
        raise Missing(f"`{' '.join(command)}` failed; name a number by --codex-version")
    return number


def require_npm() -> None:
    """Says what to do where npm is missing."""
    if shutil.which("npm") is None:
        raise Missing("npm is not installed; install node and npm, or name a CLI by --codex")


def install_codex(version: str) -> Path:
    """Returns the CLI of that version, and installs it into the cache the first time."""
    prefix = CACHE / "npm" / version
    codex = prefix / "node_modules" / ".bin" / "codex"
    if codex.exists():
        return codex
    require_npm()
    prefix.mkdir(parents=True, exist_ok=True)
    quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
    package = f"{PACKAGE}@{version}"
    command = ["npm", "install", "--prefix", str(prefix), *quiet, package]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0 or not codex.exists():
        raise Missing(f"`{' '.join(command)}` failed; name an installed CLI by --codex")
    return codex


def executable_of(codex: Path) -> Path:
    """Returns the program that the CLI's launcher runs; a CLI that is no launcher is that itself."""
    launcher = codex.resolve()
    if launcher.suffix != ".js":
        return launcher
    # <packages>/codex/bin/codex.js runs <packages>/codex-<platform>/vendor/<target>/bin/codex.
    packages = launcher.parent.parent.parent
    found = sorted(packages.glob("codex-*/vendor/*/bin/codex"))
    if not found:
        raise Missing(f"{launcher} has no program for this machine beside it")
    return found[0]


def build_server() -> Path:
    """Returns the release build of our server, and builds it if it is missing."""
    server = TARGET / "release" / "exec-server"
    if server.exists():
        return server
    command = ["cargo", "build", "--release", "--locked", "--bin", "exec-server"]
    if subprocess.run(command, cwd=ROOT).returncode != 0 or not server.exists():
        raise Missing(f"`{' '.join(command)}` failed; name a server by --server")
    return server
