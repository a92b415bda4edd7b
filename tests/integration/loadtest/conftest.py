"""The scripted provider as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator

import httpx
import pytest


@pytest.fixture(scope="module")
async def provider_url() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace_loadtest.provider", "--listen", "127.0.0.1:0", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(20):
        line = (await process.stdout.readline()).decode()
    assert line.startswith("ready http://")
    yield line.split()[1]
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(5):
        assert await process.wait() == 0


@pytest.fixture
async def model(provider_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=provider_url, timeout=10) as client:
        await client.post("/reset")
        yield client
