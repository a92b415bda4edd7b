"""What the pool makes of a caller's own mistake, of a connection that was cut, and of a server that takes no writes."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from headrace_kit.errors import Unavailable
from headrace_kit.postgres import Database
from run_worker.adapters.reclaims import FaultPolicy
from run_worker.loops.contact import Contact
from run_worker.loops.reclaim import Reclaim
from run_worker.loops.roster import Roster
from run_worker.loops.waits import RunWaits

from tests.integration.run_worker_control.world import World
from tests.support.servers import TestDatabase


@pytest.mark.parametrize(
    ("given", "raised"),
    [(["seven"], asyncpg.DataError), ([2**70], asyncpg.DataError), ([1, 2], asyncpg.InterfaceError)],
)
async def test_wrong_parameters_are_not_an_absent_server(
    world: World, given: list[Any], raised: type[Exception]
) -> None:
    """1. A statement gets a parameter that cannot be encoded, or one too many.  2. It raises what it is.
    3. The same pool tells a lost connection as Unavailable.
    """
    with pytest.raises(raised):
        await world.control.fetchval("SELECT $1::bigint", *given)
    with pytest.raises(Unavailable):
        await world.control.fetchval("SELECT pg_terminate_backend(pg_backend_pid())")


async def test_a_connection_that_was_cut_is_never_lent_again(database: TestDatabase) -> None:
    """1. A connection's use ends as asyncpg ends it when the cut was read and not dealt with.  2. Unavailable; the only
    place of the pool gets another connection.
    """
    pool = Database(dsn=database.dsn("control"), pool_max=1, application="test-cut")
    await pool.open()
    try:
        first = await pool.fetchval("SELECT pg_backend_pid()")
        with pytest.raises(Unavailable):
            await _cut_unnoticed(pool)
        assert await pool.fetchval("SELECT pg_backend_pid()") != first
    finally:
        await pool.close()


async def test_nobody_is_judged_while_the_database_is_read_only(world: World, database: TestDatabase) -> None:
    """1. PostgreSQL answers and takes no writes, so that leases cannot be renewed.  2. Control is not ready and judges
    nobody; contact begins anew.  3. It takes writes again: the same roster is ready.
    """
    await world.add_executor()
    role = f"{database.deployment}_control"
    owner = await asyncpg.connect(database.server_dsn)
    pool = Database(dsn=database.dsn("control"), pool_max=1, application="test-read-only")
    judged: list[object] = []
    served: list[bool] = []

    async def set_serving(serving: bool) -> None:
        served.append(serving)

    contact = Contact(ttl_seconds=0.0)
    roster = Roster(database=pool, hints=world.hints, contact=contact, set_serving=set_serving, judge=judged.append)
    await pool.open()
    try:
        await owner.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
        await roster.refresh()
        assert (served, judged, contact.settled) == ([], [], False)
        await owner.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
        await roster.refresh()
        assert served == [True]
    finally:
        await owner.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
        await owner.close()
        await pool.close()


async def test_loops_outlive_whatever_postgresql_says(world: World, database: TestDatabase) -> None:
    """1. Every statement of control's loops is refused by an error that is no outage.  2. None of the loops ends."""
    pool = Database(dsn=database.dsn("gateway"), pool_max=4, application="test-refused")
    await pool.open()
    contact = Contact(ttl_seconds=0.0)
    policy = FaultPolicy(max_faults=3, back_off_seconds=(1.0, 4.0))

    async def set_serving(_serving: bool) -> None:
        return None

    roster = Roster(
        database=pool, hints=world.hints, contact=contact, set_serving=set_serving, judge=lambda _rows: None
    )
    reclaim = Reclaim(database=pool, aftermath=world.aftermath, policy=policy, contact=contact)
    reclaim.exited(uuid4(), "signal 9")
    waits = RunWaits(pool)
    waiting = asyncio.create_task(waits.wait(uuid4(), seconds=30))
    loops = {asyncio.create_task(loop) for loop in (roster.run(), reclaim.run(), reclaim.sweep(), waits.run())}
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await pool.fetchval("SELECT count(*) FROM runs")
        ended, _ = await asyncio.wait(loops, timeout=1.5)  # the slowest loop's period, and room
        assert ended == set()
    finally:
        for task in (*loops, waiting):
            task.cancel()
        await asyncio.gather(*loops, waiting, return_exceptions=True)
        await pool.close()


async def _cut_unnoticed(pool: Database) -> None:
    async with pool.connection():
        raise asyncpg.InternalClientError("got result for unknown protocol state 3")
