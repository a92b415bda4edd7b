"""An executor inside the test process: real PostgreSQL, Redis and LangGraph, its own loops, and rows made by hand."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import orjson
from headrace_contract.projection import FIELD_DATA, FIELD_EVENT, EventId, cancel_key, events_key
from headrace_kit.budget import Budget
from headrace_kit.ids import new_id
from headrace_kit.postgres import Database
from headrace_kit.redis import open_redis
from opentelemetry import trace
from run_worker.adapters import leases
from run_worker.adapters.graphs import Agent, AgentSettings
from run_worker.adapters.stream import ProjectionWriter
from run_worker.executor import lease_figures, run_figures, stream_limits
from run_worker.loops.attempt import ExecutorParts, RunFigures
from run_worker.loops.cancel_watch import CancelWatch
from run_worker.loops.claim import Claimer
from run_worker.loops.flusher import Flusher
from run_worker.loops.renewal import Lease
from run_worker.loops.table import RunTable

from tests.support.servers import TestDatabase

WAIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Made:
    """A run made by hand, pending."""

    thread_id: UUID
    request_id: UUID
    run_id: UUID


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a run's stream."""

    id: EventId
    event: str
    data: Any


@dataclass(slots=True)
class TestExecutor:
    """A running executor; not started as a process."""

    __test__ = False

    parts: ExecutorParts
    table: RunTable
    claimer: Claimer
    watch: CancelWatch
    tasks: list[asyncio.Task[None]]


def agent(name: str, graph: Any, **settings: Any) -> Agent:
    return Agent(name=name, description="", digest=f"digest-{name}", settings=AgentSettings(**settings), graph=graph)


class World:
    """One deployment of a test: database, Redis, and the executors that it starts."""

    def __init__(self, database: TestDatabase, redis_url: str, budget: Budget) -> None:
        self.dsns = database
        self.budget = budget
        self.control = self._pool("control")
        self.redis = open_redis(redis_url, max_connections=16, client_name="test")
        self._redis_url = redis_url

    def _pool(self, role: str) -> Database:
        pool_max = self.budget.roles[role].pool_cap
        return Database(dsn=self.dsns.dsn(role), pool_max=pool_max, application=f"test-{role}")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[World]:
        await self.control.open()
        # Runs of former tests would be claimed by this one's executors.
        for table in ("threads", "executors", "agents"):
            await self.control.execute(f"DELETE FROM {table}")
        try:
            yield self
        finally:
            await self.redis.aclose()
            await self.control.close()

    # --- rows -----------------------------------------------------------------------------------------------------

    async def thread(self, *, agent: str = "echo") -> UUID:
        thread_id = new_id()
        await self.control.execute(
            "INSERT INTO threads (thread_id, uid, agent) VALUES ($1, 'user', $2)", thread_id, agent
        )
        return thread_id

    async def request(
        self, thread_id: UUID, *, agent: str, text: str = "hello", queued: bool = False, **columns: Any
    ) -> Made:
        """Insert a request with one user message, and its run unless `queued`."""
        made = Made(thread_id=thread_id, request_id=new_id(), run_id=new_id())
        given = {"messages": [{"role": "user", "content": text, "id": f"user-{made.run_id}"}]}
        body = columns.pop("input", given)
        async with self.control.transaction() as connection:
            await connection.execute(
                "INSERT INTO requests (request_id, thread_id, uid, agent, run_id, state, body_sha256, input,"
                " stream_modes, config, durability, dispatched_at)"
                " VALUES ($1, $2, 'user', $3, $4, $5, 'x', $6, $7, $8, $9,"
                " CASE WHEN $5 = 'dispatched' THEN now() END)",
                made.request_id,
                thread_id,
                agent,
                made.run_id,
                "queued" if queued else "dispatched",
                json.dumps(body),
                columns.get("stream_modes", []),
                json.dumps(columns.get("config", {})),
                columns.get("durability", ""),
            )
            if not queued:
                ordinal = await connection.fetchval(
                    "UPDATE threads SET state = 'busy', active_run_id = $2, latest_run_id = $2,"
                    " runs_count = runs_count + 1 WHERE thread_id = $1 RETURNING runs_count",
                    thread_id,
                    made.run_id,
                )
                await connection.execute(
                    "INSERT INTO runs (run_id, request_id, thread_id, uid, agent, ordinal, root_run_id)"
                    " VALUES ($1, $2, $3, 'user', $4, $5, $1)",
                    made.run_id,
                    made.request_id,
                    thread_id,
                    agent,
                    ordinal,
                )
        return made

    async def run(self, *, agent: str, **columns: Any) -> Made:
        """Insert a thread with one pending run."""
        return await self.request(await self.thread(agent=agent), agent=agent, **columns)

    async def executor_row(self, *, expires_in: float = 60.0) -> UUID:
        """Insert the row of an executor that is not here."""
        executor_id = new_id()
        await self.control.execute(
            "INSERT INTO executors (executor_id, control_id, host, pid, address, version, slots, lease_expires_at)"
            " VALUES ($1, $1, 'elsewhere', 1, '', 'test', 10, clock_timestamp() + make_interval(secs => $2))",
            executor_id,
            expires_in,
        )
        return executor_id

    async def row(self, run_id: UUID) -> Any:
        return await self.control.fetchrow(
            "SELECT *, run_timing_json(runs)::text AS timing FROM runs WHERE run_id = $1", run_id
        )

    async def messages(self, thread_id: UUID) -> list[dict[str, Any]]:
        rows = await self.control.fetch(
            "SELECT message_json(messages)::text AS m FROM messages WHERE thread_id = $1 ORDER BY seq", thread_id
        )
        return [orjson.loads(row["m"]) for row in rows]

    async def cancel(self, made: Made, *, key: bool = False) -> None:
        """Commit a cancel; with `key` the hint too."""
        await self.control.execute("UPDATE runs SET cancel_requested_at = now() WHERE run_id = $1", made.run_id)
        if key:
            await self.redis.set(cancel_key(str(made.run_id)), b"1", ex=60)

    async def one(self, sql: str, *args: Any) -> Any:
        """Return the row that must be there."""
        row = await self.control.fetchrow(sql, *args)
        assert row is not None
        return row

    # --- waiting --------------------------------------------------------------------------------------------------

    async def state_is(self, made: Made, *states: str) -> Any:
        """Wait until PostgreSQL says one of `states`; return the row."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            row = await self.row(made.run_id)
            if row["state"] in states:
                return row
            assert time.monotonic() < deadline, f"run is {row['state']}, not one of {states}; error {row['error']}"
            await asyncio.sleep(0.01)

    async def events(self, made: Made) -> list[Event]:
        rows: Any = await self.redis.xrange(events_key(str(made.run_id)))
        return [
            Event(EventId.parse(place), fields[FIELD_EVENT].decode(), orjson.loads(fields[FIELD_DATA]))
            for place, fields in rows
        ]

    async def event(self, made: Made, name: str) -> list[Event]:
        """Wait until the stream holds an event of that name; return all events."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            events = await self.events(made)
            if any(event.event == name for event in events):
                return events
            assert time.monotonic() < deadline, f"no {name} in {[event.event for event in events]}"
            await asyncio.sleep(0.01)

    # --- executors ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def executor(
        self,
        *agents: Agent,
        slots: int = 10,
        figures: RunFigures | None = None,
        limits: Mapping[str, Any] | None = None,
        watching: bool = True,
        database: Database | None = None,
    ) -> AsyncIterator[TestExecutor]:
        """Start an executor with these agents; its runs are cancelled at the end, as an ending process would."""
        async with AsyncExitStack() as stack:
            database, graph = database or self._pool("executor"), self._pool("graph")
            for pool in (database, graph):
                await pool.open()
                stack.push_async_callback(pool.close)
            redis = open_redis(self._redis_url, max_connections=16, client_name="test-executor")
            stack.push_async_callback(redis.aclose)
            writer = ProjectionWriter(redis, shards=1, ttl_seconds=60)
            flusher = Flusher(writer, window_seconds=0.025, window_max_seconds=0.25)
            table = RunTable(slots)
            claimer = Claimer(table, poll_seconds=0.1, max_faults=3)
            long = replace(lease_figures(self.budget), lease=3600.0)
            executor_id = await self.executor_row(expires_in=3600.0)
            parts = ExecutorParts(
                executor_id=executor_id,
                database=database,
                graph_database=graph,
                flusher=flusher,
                lease=Lease(long, registered_at=time.monotonic()),
                agents={one.name: one for one in agents},
                figures=figures or run_figures(self.budget),
                stream_limits=replace(stream_limits(self.budget), **(limits or {}))
                if limits
                else stream_limits(self.budget),
                tracer=trace.get_tracer("test"),
                revision="test",
                model="test-model",
                slot_freed=claimer.slot_freed,
            )
            watch = CancelWatch(parts, table, writer, redis_seconds=0.05, postgres_seconds=0.2)
            loops = [flusher.run(), claimer.run(parts)] + ([watch.run()] if watching else [])
            tasks = [asyncio.create_task(loop) for loop in loops]
            try:
                yield TestExecutor(parts, table, claimer, watch, tasks)
            finally:
                claimer.draining = True
                await table.cancel_all()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def hand_take(self, made: Made, owner: UUID) -> None:
        """Make `owner` the run's next owner, as its claim would."""
        await self.control.execute(
            "UPDATE runs SET state = 'running', attempt = attempt + 1, lease_owner = $2, started_at = now()"
            " WHERE run_id = $1",
            made.run_id,
            owner,
        )
        await self.control.execute(
            "INSERT INTO attempts (run_id, attempt, executor_id)"
            " SELECT run_id, attempt, $2 FROM runs WHERE run_id = $1",
            made.run_id,
            owner,
        )


__all__ = ["Event", "Made", "TestExecutor", "World", "agent", "leases"]
