"""What the servers cost while a level runs: CPU and memory per process, PostgreSQL sessions, Redis clients.

CPU is the kernel's count over the level, not a sum of samples, so that nothing between two samples is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import psutil
import redis.asyncio

INTERVAL_S = 1.0
DATABASE_TIMEOUT_S = 5.0
"""For a sample of the sessions; a server too busy for it shows as a missing sample."""

SESSIONS = """
SELECT usename, count(*), count(*) FILTER (WHERE state = 'active') AS active
FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() GROUP BY usename
"""


@dataclass(slots=True)
class Usage:
    """One level's cost. Keys are the names of processes, `executors` taking all of them together."""

    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    cpu_peak_percent: dict[str, float] = field(default_factory=dict)
    rss_peak_bytes: dict[str, int] = field(default_factory=dict)
    sessions_peak: dict[str, int] = field(default_factory=dict)
    sessions_total_peak: int = 0
    sessions_active_peak: int = 0
    redis_clients_peak: int = 0
    redis_pubsub_peak: int = 0
    samples: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    """What could not be sampled, and why."""


class Sampler:
    """Samples the deployment that a `.run/state.json` describes; without one it says so and samples nothing."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._groups: dict[str, list[int]] = {}
        services: Mapping[str, Any] = state.get("services") or {}
        for name, service in services.items():
            self._add(name, (service.get("process") or {}).get("pid"))
        for name in ("postgres", "redis"):
            server = state.get(name) or {}
            self._add(name, (server.get("process") or {}).get("pid"))
        self._dsn: str | None = (state.get("postgres") or {}).get("url")
        self._redis_url: str | None = (state.get("redis") or {}).get("url")

    @contextlib.asynccontextmanager
    async def during(self) -> AsyncIterator[Usage]:
        """Sample while the block runs; the usage is complete when it has ended."""
        usage = Usage()
        loop = asyncio.get_running_loop()
        if not self._groups:
            usage.missing["processes"] = "no .run/state.json names their pids"
        before, began = self._cpu(), loop.time()
        sampling = asyncio.create_task(self._sample(usage), name="sampler")
        try:
            yield usage
        finally:
            usage.seconds = loop.time() - began
            usage.cpu_s = {name: round(cpu - before.get(name, 0.0), 3) for name, cpu in self._cpu().items()}
            sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # ours, from the line above
                await sampling

    def _add(self, name: str, pid: int | None) -> None:
        if pid is not None:
            self._groups[name] = [pid]

    async def _sample(self, usage: Usage) -> None:
        async with contextlib.AsyncExitStack() as stack:
            database = await self._connect(stack, usage)
            store = None
            if self._redis_url is not None:
                store = redis.asyncio.Redis.from_url(self._redis_url, single_connection_client=True)
                stack.push_async_callback(store.aclose)
            before = self._cpu()
            while True:
                await asyncio.sleep(INTERVAL_S)
                now = self._cpu()
                for name, cpu in now.items():
                    percent = (cpu - before.get(name, cpu)) / INTERVAL_S * 100
                    usage.cpu_peak_percent[name] = round(max(usage.cpu_peak_percent.get(name, 0.0), percent), 1)
                before = now
                for name, rss in self._memory().items():
                    usage.rss_peak_bytes[name] = max(usage.rss_peak_bytes.get(name, 0), rss)
                if database is not None:
                    await _sessions(database, usage)
                if store is not None:
                    await _redis_clients(store, usage)
                usage.samples += 1

    async def _connect(self, stack: contextlib.AsyncExitStack, usage: Usage) -> asyncpg.Connection | None:
        if self._dsn is None:
            usage.missing["sessions"] = "no administrator's address of PostgreSQL"
            return None
        try:
            connection = await asyncpg.connect(self._dsn, timeout=DATABASE_TIMEOUT_S)
        except (OSError, TimeoutError, asyncpg.PostgresError) as error:
            usage.missing["sessions"] = f"{type(error).__name__}: {error}"
            return None
        stack.push_async_callback(connection.close)
        return connection

    def _processes(self) -> dict[str, list[psutil.Process]]:
        """Return the live processes by name; a run-worker's children are the executors."""
        found: dict[str, list[psutil.Process]] = defaultdict(list)
        for name, pids in self._groups.items():
            for pid in pids:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(pid)
                    children = process.children(recursive=True)
                    if name == "run-worker":
                        found["run-worker control"].append(process)
                        found["executors"] += children
                    else:
                        found[name] += [process, *children]
        return found

    def _cpu(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        for name, processes in self._processes().items():
            total = 0.0
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total += times.user + times.system
                    if name == "postgres":  # backends that ended meanwhile
                        total += times.children_user + times.children_system
            totals[name] = total
        return totals

    def _memory(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for name, processes in self._processes().items():
            private, shared = 0, 0
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    memory = process.memory_info()
                    private += memory.rss - memory.shared
                    shared = max(shared, memory.shared)
            totals[name] = private + shared
        return totals


async def _sessions(database: asyncpg.Connection, usage: Usage) -> None:
    try:
        rows = await database.fetch(SESSIONS, timeout=DATABASE_TIMEOUT_S)
    except (TimeoutError, asyncpg.PostgresError) as error:
        usage.missing["sessions"] = f"a sample failed: {type(error).__name__}"
        return
    for role, count, _ in rows:
        usage.sessions_peak[role] = max(usage.sessions_peak.get(role, 0), count)
    usage.sessions_total_peak = max(usage.sessions_total_peak, sum(row[1] for row in rows))
    usage.sessions_active_peak = max(usage.sessions_active_peak, sum(row[2] for row in rows))


async def _redis_clients(store: redis.asyncio.Redis, usage: Usage) -> None:
    try:
        info = await store.info("clients")
    except redis.RedisError as error:
        usage.missing["redis"] = f"a sample failed: {type(error).__name__}"
        return
    usage.redis_clients_peak = max(usage.redis_clients_peak, int(info["connected_clients"]) - 1)  # less our own
    usage.redis_pubsub_peak = max(usage.redis_pubsub_peak, int(info.get("pubsub_clients", 0)))
