"""Sampling real servers: sessions by role, Redis clients, and the CPU of processes by pid."""

from __future__ import annotations

import asyncio
import os
import time

import asyncpg
from headrace_loadtest.sampling import Sampler

from tests.support.servers import Servers, TestDatabase


async def test_samples_sessions_clients_and_cpu(servers: Servers, database: TestDatabase) -> None:
    """
    1. two sessions of role `gateway` are open, and this process burns some CPU
    2. the usage has both sessions under their role, the CPU under the process's name, and its memory
    """
    state = {
        "services": {"api-gateway": {"process": {"pid": os.getpid()}}},
        "postgres": {"url": servers.admin_dsn},
        "redis": {"url": servers.redis_url},
    }
    held = [await asyncpg.connect(database.dsn("gateway")) for _ in range(2)]
    try:
        async with Sampler(state).during() as usage:
            until = time.process_time() + 0.2
            while time.process_time() < until:
                pass
            async with asyncio.timeout(10):
                while usage.samples == 0:  # noqa: ASYNC110  # a counter, on which nothing can wait
                    await asyncio.sleep(0.05)
    finally:
        for connection in held:
            await connection.close()
    assert usage.sessions_peak[f"{database.deployment}_gateway"] == 2
    assert usage.sessions_total_peak >= 2
    assert usage.cpu_s["api-gateway"] >= 0.2
    assert usage.rss_peak_bytes["api-gateway"] > 2**20
    assert usage.redis_clients_peak >= 0
    assert usage.missing == {}


async def test_without_a_state_it_says_so() -> None:
    async with Sampler({}).during() as usage:
        pass
    assert set(usage.missing) >= {"processes"}
    assert usage.cpu_s == {}


async def test_a_database_that_is_away_is_told_not_fatal() -> None:
    """
    1. PostgreSQL's address leads nowhere
    2. the level is measured all the same, and says that sessions were not sampled
    """
    state = {"services": {"x": {"process": {"pid": os.getpid()}}}, "postgres": {"url": "postgresql://a@127.0.0.1:1/x"}}
    async with Sampler(state).during() as usage, asyncio.timeout(10):
        while usage.samples == 0:  # noqa: ASYNC110  # a counter, on which nothing can wait
            await asyncio.sleep(0.05)
    assert "sessions" in usage.missing
