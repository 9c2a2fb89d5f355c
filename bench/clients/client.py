"""Runs commands through the Python client for `exec-bench`, and times them.

The first argument is the URL of the server, the second `sync` or `asyncio`. Each line on stdin is
`run COUNT SECONDS` or `output BYTES`; the answer is a line with the times as a JSON list.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Awaitable, Callable, List

from exec_server import AsyncEnvironment, Environment


def output_command(size: int) -> List[str]:
    return ["head", "-c", str(size), "/dev/zero"]


def answer(times: List[float]) -> None:
    print(json.dumps(times), flush=True)


def serve(url: str) -> None:
    with Environment.connect(url) as env:
        for line in sys.stdin:
            words = line.split()
            times: List[float] = []
            if words[0] == "run":
                end = time.perf_counter() + float(words[2])
                while len(times) < int(words[1]) and (not times or time.perf_counter() < end):
                    start = time.perf_counter()
                    env.run(["true"], capture_output=True, check=True)
                    times.append(time.perf_counter() - start)
            else:
                start = time.perf_counter()
                process = env.spawn(output_command(int(words[1])))
                assert process.stdout is not None
                size = 0
                while chunk := process.stdout.read(1 << 20):
                    size += len(chunk)
                times.append(time.perf_counter() - start)
                assert size == int(words[1]), f"{size} bytes instead of {words[1]}"
                process.wait()
            answer(times)


async def serve_asynchronously(url: str) -> None:
    loop = asyncio.get_running_loop()
    read_line: Callable[[], Awaitable[str]] = lambda: loop.run_in_executor(
        None, sys.stdin.readline
    )
    async with await AsyncEnvironment.connect(url) as env:
        while line := await read_line():
            words = line.split()
            times: List[float] = []
            if words[0] == "run":
                end = time.perf_counter() + float(words[2])
                while len(times) < int(words[1]) and (not times or time.perf_counter() < end):
                    start = time.perf_counter()
                    await env.run(["true"], capture_output=True, check=True)
                    times.append(time.perf_counter() - start)
            else:
                start = time.perf_counter()
                process = await env.spawn(output_command(int(words[1])))
                assert process.stdout is not None
                size = 0
                async for chunk in process.stdout:
                    size += len(chunk)
                times.append(time.perf_counter() - start)
                assert size == int(words[1]), f"{size} bytes instead of {words[1]}"
                await process.wait()
            answer(times)


if __name__ == "__main__":
    if sys.argv[2] == "sync":
        serve(sys.argv[1])
    else:
        asyncio.run(serve_asynchronously(sys.argv[1]))
