from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from headrace_kit.budget import Budget
from headrace_kit.errors import Unavailable
from headrace_kit.postgres import Database
from run_worker.adapters.leases import LeaseConnection
from run_worker.executor import lease_figures
from run_worker.loops.renewal import Lease, LeaseFigures, LeaseKeeper, tick

from tests.integration.run_worker_executor.graphs import Talker, echo
from tests.integration.run_worker_executor.harness import World, agent
from tests.support.servers import Servers

FIGURES = LeaseFigures(lease=10.0, renew=0.05, margin=2.0, silence=1.0)


class AnswerLost(Database):
    """Commits, and then says that PostgreSQL went away: the first `losses` times."""

    losses = 1

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with super().transaction() as connection:
            yield connection
        if self.losses:
            self.losses -= 1
            raise Unavailable("the connection was lost", reason="POSTGRES_UNAVAILABLE")


async def test_a_commit_without_an_answer_is_read_back(world: World) -> None:
    """
    1. The end of a run is committed; its answer is lost.
    2. The owner reads it back and tells `result` and `end`, once, under the committed ids.
    """
    made = await world.run(agent="echo")
    unlucky = AnswerLost(dsn=world.dsns.dsn("executor"), pool_max=4, application="unlucky")
    async with world.executor(agent("echo", echo()), database=unlucky):
        row = await world.state_is(made, "completed", "failed")
        events = await world.event(made, "end")
    assert unlucky.losses == 0
    assert row["state"] == "completed", row["error"]
    assert [event.event for event in events].count("result") == 1
    assert (row["result_event_id"], row["end_event_id"]) == (str(events[-2].id), str(events[-1].id))


async def test_a_cancel_that_comes_after_the_last_node_still_wins(world: World) -> None:
    """
    1. A graph has finished; a cancel is committed before its end is.
    2. The run ends cancelled and keeps its messages.
    """
    talker = Talker()
    made = await world.run(agent="talker")
    async with world.executor(agent("talker", talker.graph()), watching=False):
        await asyncio.wait_for(talker.said.wait(), 10)
        await world.cancel(made)
        talker.go_on.set()
        row = await world.state_is(made, "cancelled", "completed", "failed")
        events = await world.event(made, "end")
    assert row["state"] == "cancelled"
    assert [m["content"] for m in await world.messages(made.thread_id)] == ["partial text and the rest"]
    assert events[-2].data["status"] == "cancelled"


async def test_a_lease_is_renewed_only_while_the_main_loop_ticks(world: World) -> None:
    """
    1. The thread renews the executor's lease while the main loop ticks.
    2. The main loop is blocked for longer than the silence limit: renewals stop, and begin again when it ticks.
    """
    executor_id = await world.executor_row(expires_in=1)
    lease = Lease(FIGURES, registered_at=time.monotonic())
    connection = LeaseConnection(dsn=world.dsns.dsn("executor"), executor_id=executor_id, lease_seconds=10.0)
    keeper = LeaseKeeper(lease, connection, on_dead=lambda: None)
    ticking = asyncio.create_task(tick(lease))
    keeper.start()
    try:
        await asyncio.sleep(0.2)
        assert lease.alive()
        time.sleep(1.2)  # noqa: ASYNC251  # the blocked loop is what is tested
        before = lease.own_end
        time.sleep(0.3)  # noqa: ASYNC251  # the blocked loop is what is tested
        assert lease.own_end == before
        async with asyncio.timeout(10):
            while lease.own_end == before:  # noqa: ASYNC110  # another thread's float
                await asyncio.sleep(0.02)
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await keeper.stop()
    left = await world.control.fetchval(
        "SELECT extract(epoch FROM lease_expires_at - now()) FROM executors WHERE executor_id = $1", executor_id
    )
    assert left > 8


async def test_an_executor_that_was_declared_dead_stops_everything(world: World) -> None:
    """
    1. Control marks the executor as exited although its process lives.
    2. The next renewal finds out: the lease is dead and the main loop is told.
    """
    executor_id = await world.executor_row()
    lease = Lease(FIGURES, registered_at=time.monotonic())
    connection = LeaseConnection(dsn=world.dsns.dsn("executor"), executor_id=executor_id, lease_seconds=10.0)
    dead = asyncio.Event()
    keeper = LeaseKeeper(lease, connection, on_dead=dead.set)
    ticking = asyncio.create_task(tick(lease))
    await world.control.execute("UPDATE executors SET exited_at = now() WHERE executor_id = $1", executor_id)
    keeper.start()
    try:
        await asyncio.wait_for(dead.wait(), 10)
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await keeper.stop()
    assert not lease.alive()
    assert not lease.may_stream()


async def test_no_call_is_begun_after_the_lease(world: World, budget: Budget) -> None:
    """
    1. The own lease end passes while PostgreSQL does not answer renewals.
    2. Models may not be called any more; the run may stream on for a minute.
    """
    lease = Lease(lease_figures(budget), registered_at=time.monotonic() - 9)
    assert not lease.alive()
    assert not lease.may_stream()
    lease.missed()
    assert lease.may_stream()
    assert not lease.may_take_over()


async def test_cut_connections_to_postgresql_do_not_end_a_run(world: World, servers: Servers) -> None:
    """
    1. A run is between two checkpoints when every connection of its executor is cut.
    2. The saver tries again; the run completes in its first attempt.
    """
    talker = Talker()
    made = await world.run(agent="talker")
    admin = await asyncpg.connect(servers.admin_dsn)
    try:
        async with world.executor(agent("talker", talker.graph())):
            await asyncio.wait_for(talker.said.wait(), 10)
            cut = await admin.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = ANY($1)",
                ["test-executor", "test-graph"],
            )
            talker.go_on.set()
            row = await world.state_is(made, "completed", "failed")
    finally:
        await admin.close()
    assert cut > 0
    assert (row["state"], row["attempt"]) == ("completed", 1)
