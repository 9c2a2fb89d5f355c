"""The examples of the guide run, and the reference is that of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from conftest import ROOT, Server

import exec_server

GUIDE = ROOT / "docs" / "sdk-python.md"
README = ROOT / "sdk" / "python" / "README.md"


def examples() -> List[str]:
    texts = []
    for document in (GUIDE, README):
        texts += re.findall(r"^```python\n(.*?)^```", document.read_text(), re.M | re.S)
    return texts


@pytest.mark.parametrize("number", range(len(examples())))
def test_example_of_the_documentation_runs(number: int, server: Server, tmp_path: Path) -> None:
    code = examples()[number].replace("ws://127.0.0.1:8080", server.url)
    # Each run has its own files and ids.
    code = code.replace("/tmp/", f"{tmp_path}/").replace("demo", f"demo-{tmp_path.name}")
    code = code.replace('cwd="/tmp"', f'cwd="{tmp_path}"')
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", ["generate_sync.py", "api_reference.py"])
def test_generated_file_is_current(script: str) -> None:
    path = ROOT / "sdk" / "python" / "scripts" / script
    done = subprocess.run([sys.executable, str(path), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version_is_that_of_the_program() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M)
    assert version is not None and version[1] == exec_server.__version__
