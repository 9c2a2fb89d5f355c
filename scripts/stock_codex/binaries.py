"""The two programs under test: the CLI from npm and our server from cargo.

Not here: running them (`cli`, `server`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
CACHE = TARGET / "stock-codex"
# The release whose behaviour the wire page describes; `--codex-version latest` looks ahead.
CODEX_VERSION = "0.166.0"


class Missing(Exception):
    """A program is not there and cannot be made; the message says what to do."""


def install_codex(version: str) -> Path:
    """Returns the CLI of that version, and installs it into the cache the first time."""
    prefix = CACHE / "npm" / version
    codex = prefix / "node_modules" / ".bin" / "codex"
    # A tag such as `latest` moves, so that only a number can be taken from the cache.
    if codex.exists() and version[:1].isdigit():
        return codex
    if shutil.which("npm") is None:
        raise Missing("npm is not installed; install node and npm, or name a CLI by --codex")
    prefix.mkdir(parents=True, exist_ok=True)
    quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
    package = f"@openai/codex@{version}"
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
