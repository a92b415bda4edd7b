"""A saver on the role that executors use, and a run that it may write for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeAlias
from uuid import UUID, uuid4

import asyncpg
import pytest
from headrace_kit.postgres import Database
from run_worker.adapters.saver import Fence

from tests.support.servers import TestDatabase

ADD_EXECUTOR = """
INSERT INTO executors (executor_id, control_id, host, pid, address, version, slots, lease_expires_at)
VALUES ($1, $1, 'here', 1, '127.0.0.1:1', 'test', 1, now() + interval '1 hour')"""
ADD_THREAD = "INSERT INTO threads (thread_id, uid, agent, state, active_run_id) VALUES ($1, 'u', 'echo', 'busy', $2)"
ADD_REQUEST = """
INSERT INTO requests (request_id, thread_id, uid, agent, run_id, state, body_sha256, dispatched_at)
VALUES ($3, $1, 'u', 'echo', $2, 'dispatched', '\\x00', now())"""
ADD_RUN = """
INSERT INTO runs (run_id, request_id, thread_id, uid, agent, ordinal, root_run_id, state, attempt, lease_owner)
VALUES ($2, $3, $1, 'u', 'echo', 1, $2, 'running', 1, $4)"""


Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"


async def until_waiting(connection: Connection, sessions: int = 1) -> None:
    """Return when so many sessions of this test's server wait for a lock."""
    while await connection.fetchval(WAITING) < sessions:  # noqa: ASYNC110 - PostgreSQL has no event for it
        await asyncio.sleep(0.01)


class OwnedRun:
    """A running run in the database: thread, fence, and a second executor that may take it over."""

    def __init__(self, thread_id: UUID, fence: Fence, rival: UUID) -> None:
        self.thread_id = str(thread_id)
        self.fence = fence
        self.rival = rival


@pytest.fixture
async def graph_database(database: TestDatabase) -> AsyncIterator[Database]:
    opened = Database(dsn=database.dsn("graph"), pool_max=8, application="test-graph")
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def owner_connection(database: TestDatabase) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database.admin_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def watching(database: TestDatabase) -> AsyncIterator[Connection]:
    """Another connection, for looking on while the first holds locks."""
    connection = await asyncpg.connect(database.admin_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def owned_run(owner_connection: Connection) -> OwnedRun:
    thread_id, run_id, request_id, owner, rival = (uuid4() for _ in range(5))
    async with owner_connection.transaction():
        for executor in (owner, rival):
            await owner_connection.execute(ADD_EXECUTOR, executor)
        await owner_connection.execute(ADD_THREAD, thread_id, run_id)
        await owner_connection.execute(ADD_REQUEST, thread_id, run_id, request_id)
        await owner_connection.execute(ADD_RUN, thread_id, run_id, request_id, owner)
    return OwnedRun(thread_id, Fence(run_id, 1, owner), rival)
