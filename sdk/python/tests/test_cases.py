"""The shared cases, on both environments."""

from __future__ import annotations

import asyncio
from typing import Any, Dict

import pytest
from case_runner import CaseRunner, SyncCaseRunner, load_cases
from conftest import STOCK_URL, CuttingProxy, Server

from exec_server import AsyncEnvironment, Environment

CASES = [case for case in load_cases() if STOCK_URL is None or case.get("stock")]
NAMES = [case["name"] for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_case_passes_in_asyncio(case: Dict[str, Any], server: Server, proxy: CuttingProxy) -> None:
    async def run() -> None:
        async def connect() -> AsyncEnvironment:
            return await AsyncEnvironment.connect(proxy.url)

        env = await connect()
        runner = CaseRunner(env, connect, proxy.cut)
        try:
            await runner.run(case)
        finally:
            await runner.env.close()

    asyncio.run(run())


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_case_passes_in_ordinary_code(
    case: Dict[str, Any], server: Server, proxy: CuttingProxy
) -> None:
    def connect() -> Environment:
        return Environment.connect(proxy.url)

    runner = SyncCaseRunner(connect(), connect, proxy.cut)
    try:
        asyncio.run(runner.run(case))
    finally:
        runner.env.close()
