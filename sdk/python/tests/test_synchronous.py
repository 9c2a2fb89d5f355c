"""What is special about ordinary code: files that read ahead, interrupts, and forks."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Server, is_running, wait_for

from exec_server import Environment, OutputLimitError, TimeoutExpired

# Files that read ahead.


@pytest.mark.parametrize("is_text", [False, True])
def test_communicate_returns_what_the_files_have_read_ahead(
    server: Server, tmp_path: Path, is_text: bool
) -> None:
    # A character is cut where the read ahead ends.
    script = r"""
        printf 'first\nsecond \342\202'; printf 'wrong\nmore' >&2
        until [ -e go ]; do sleep 0.01; done
        printf '\254\r\n'
    """
    with Environment.connect(server.url) as env:
        process = env.spawn(["sh", "-c", script], cwd=tmp_path, text=is_text)
        assert process.stdout is not None and process.stderr is not None
        first, wrong = process.stdout.readline(), process.stderr.readline()
        with pytest.raises(TimeoutExpired) as early:
            process.communicate(timeout=0.1)
        (tmp_path / "go").touch()
        out, err = process.communicate()
        assert process.communicate() == (out, err)
        assert not process.stdout.read() and not process.stderr.read()
    if is_text:
        assert (first, wrong) == ("first\n", "wrong\n")
        assert early.value.output.startswith("second ") and early.value.stderr == "more"
        # As `read` returns it.
        assert (out, err) == ("second €\n", "more")
    else:
        assert (first, wrong) == (b"first\n", b"wrong\n")
        assert early.value.output == b"second \xe2\x82" and early.value.stderr == b"more"
        assert (out, err) == ("second €\r\n".encode(), b"more")


@pytest.mark.parametrize("is_text", [False, True])
def test_read_ahead_counts_for_the_limit_of_communicate(server: Server, is_text: bool) -> None:
    script = "printf 'line\\n%0100d' 0; exec sleep 4711475"
    with Environment.connect(server.url) as env:
        process = env.spawn(["sh", "-c", script], text=is_text)
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(OutputLimitError):
            process.communicate(max_output=99, timeout=10)
        wait_for(lambda: not is_running("4711475"))
