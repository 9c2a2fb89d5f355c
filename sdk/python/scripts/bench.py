#!/usr/bin/env python3
"""Measures the Python client beside the Rust client of `exec-server bench`, on a server of its own.

The program is `$EXEC_SERVER_TEST_PROGRAM`, or else the debug build. The numbers of a debug build
say how the clients compare, not how fast the server is.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

from exec_server import AsyncEnvironment, Environment

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("EXEC_SERVER_TEST_PROGRAM", str(ROOT / "target/debug/exec-server"))
OUTPUT_BYTES = 512 << 20
RUNS = 200
ROUNDS = 3


def milliseconds(call: Callable[[], Any]) -> float:
    """Returns the median time of a call."""
    times: List[float] = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


async def asynchronous(url: str) -> Dict[str, float]:
    async with await AsyncEnvironment.connect(url) as env:
        times = []
        for _ in range(RUNS):
            start = time.perf_counter()
            await env.run(["true"], capture_output=True)
            times.append((time.perf_counter() - start) * 1000)
        start = time.perf_counter()
        process = await env.spawn(["head", "-c", str(OUTPUT_BYTES), "/dev/zero"])
        assert process.stdout is not None
        size = 0
        async for chunk in process.stdout:
            size += len(chunk)
        assert size == OUTPUT_BYTES
        rate = size / (time.perf_counter() - start) / 1e6
        return {"run": statistics.median(times), "rate": rate}


def rust(url: str) -> Dict[str, float]:
    bench = [PROGRAM, "bench", "--env", url, "--seconds", "3", "--json"]
    done = subprocess.run(bench, capture_output=True, text=True, check=True)
    measured = {entry["name"]: entry for entry in json.loads(done.stdout)["measured"]}
    run = measured["command `true`"]["p50Micros"] / 1000
    return {"run": run, "rate": measured["output"]["bytesPerSecond"] / 1e6}


def main() -> None:
    server = subprocess.Popen([PROGRAM], stdout=subprocess.PIPE, text=True, cwd="/")
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    try:
        print("median of `true` in ms: Rust, ordinary, asyncio; output in MB/s: Rust, asyncio")
        for _ in range(ROUNDS):
            beside, found = rust(url), asyncio.run(asynchronous(url))
            with Environment.connect(url) as env:
                ordinary = milliseconds(lambda: env.run(["true"], capture_output=True))
            times = f"{beside['run']:8.2f}{ordinary:8.2f}{found['run']:8.2f}"
            print(f"{times}    {beside['rate']:8.0f}{found['rate']:8.0f}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
