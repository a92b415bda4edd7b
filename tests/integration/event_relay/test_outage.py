"""Redis or PostgreSQL away: streams stay open, go on by their cursors, and end only after a bounded outage."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from event_relay.settings import RelaySettings
from headrace_deploy.binaries import servers_choice
from headrace_deploy.servers import Redis as RedisServer

from tests.integration.event_relay.conftest import FAST
from tests.integration.event_relay.world import World, changed_budget, settings, world
from tests.support.servers import TestDatabase


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that a test may stop; it keeps nothing over a restart."""
    made = RedisServer.prepare(tmp_path / "redis", choice=servers_choice(), durable=False)
    made.start()
    yield made
    made.stop()


def _settings(
    folder: Path, *, budget_path: Path, database: TestDatabase, redis: RedisServer, outage_seconds: float
) -> RelaySettings:
    figures = FAST | {"outage_seconds": outage_seconds}
    return settings(
        folder,
        budget_file=changed_budget(budget_path, folder / "budget.toml", figures),
        relay_dsn=database.dsn("relay"),
        redis_url=redis.url,
    )


@pytest.fixture
async def alone(
    tmp_path: Path, budget_path: Path, database: TestDatabase, own_redis: RedisServer
) -> AsyncIterator[World]:
    """A relay of its own on `own_redis`."""
    made = _settings(tmp_path, budget_path=budget_path, database=database, redis=own_redis, outage_seconds=20.0)
    async with world(made, admin_dsn=database.admin_dsn) as started:
        yield started


async def _start_again(server: RedisServer, alone: World) -> None:
    await asyncio.to_thread(server.start)
    await alone.redis.connection_pool.disconnect()  # the writer's own; the relay has to cope


async def test_a_redis_that_restarts_empty_in_mid_follow(alone: World, own_redis: RedisServer) -> None:
    """1. Viewers follow a run. 2. Redis goes away; heartbeats go on. 3. It is back, empty; the owner writes a snapshot
    behind what was lost. 4. Every viewer is told reset and the snapshot, and follows on to the end.
    """
    ids = await alone.rows.running()
    writer = alone.writer(ids)
    await writer.add("metadata")
    await writer.add()
    viewings = [alone.follow(ids.run_id) for _ in range(3)]
    for viewing in viewings:
        await viewing.count(2)
    await asyncio.to_thread(own_redis.stop)
    for viewing in viewings:
        await viewing.beat(2)
    late = alone.follow(ids.run_id, after="1-2")
    await late.until(lambda v: v.beats > 0)
    await _start_again(own_redis, alone)
    writer.skip(2)
    await writer.add("snapshot")
    await writer.add("result")
    await writer.add("end")
    for viewing in viewings:
        told = (await viewing.rest()).told
        assert told == ["1-1 metadata", "1-2 custom", "reset", "1-5 snapshot", "1-6 result", "1-7 end"]
    assert (await late.rest()).told == ["reset", "1-5 snapshot", "1-6 result", "1-7 end"]


async def test_an_outage_without_loss_goes_on_by_cursor(alone: World, own_redis: RedisServer) -> None:
    """1. Redis hangs while a run is followed. 2. It answers again with everything. 3. Nothing is missing or doubled."""
    ids = await alone.rows.running()
    writer = alone.writer(ids)
    await writer.add("metadata")
    viewing = alone.follow(ids.run_id)
    await viewing.count(1)
    process = own_redis.process()
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    await viewing.until(lambda v: v.beats >= 3)
    process.send_signal(signal.SIGCONT)
    await writer.add_many(100)
    await writer.add("end")
    assert (await viewing.rest()).ids == [f"1-{n}" for n in range(1, 103)]


async def test_a_bounded_outage_ends_streams_and_a_later_one_finds_them_well(
    tmp_path: Path, budget_path: Path, database: TestDatabase, own_redis: RedisServer
) -> None:
    """1. Redis stays away longer than a stream waits: UNAVAILABLE. 2. It is back. 3. The viewer goes on."""
    made = _settings(tmp_path, budget_path=budget_path, database=database, redis=own_redis, outage_seconds=1.5)
    async with world(made, admin_dsn=database.admin_dsn) as alone:
        ids = await alone.rows.running()
        writer = alone.writer(ids)
        await writer.add("metadata")
        viewing = alone.follow(ids.run_id)
        await viewing.count(1)
        await asyncio.to_thread(own_redis.stop)
        error = await viewing.ended()
        assert error is not None
        assert (error.status, error.reason) == ("UNAVAILABLE", "REDIS_UNAVAILABLE")
        await _start_again(own_redis, alone)
        async with asyncio.timeout(20):
            while not await alone.stays_open(again := alone.follow(ids.run_id, after="1-1")):
                assert (await again.ended()) is not None
        writer.skip(1)
        await writer.add("snapshot")
        await again.count(2)
        assert again.told == ["reset", "1-3 snapshot"]


async def test_postgresql_away_in_mid_follow(alone: World, database: TestDatabase) -> None:
    """1. A run is followed. 2. PostgreSQL refuses the relay's role and cuts its sessions. 3. Events go on. 4. It lets
    the relay in again. 5. The end that Redis never got is told.
    """
    ids = await alone.rows.running()
    writer = alone.writer(ids)
    await writer.add("metadata")
    viewing = alone.follow(ids.run_id)
    await viewing.count(1)
    async with alone.rows.shut_out(f"{database.deployment}_relay", server_dsn=database.server_dsn):
        await viewing.until(lambda _: alone.relay.book.postgres.lasting)
        assert (await alone.refused(ids.run_id)).status == "UNAVAILABLE"
        await writer.add()
        await viewing.count(2)
        await alone.rows.end(ids, result="1-3")
    assert (await viewing.rest()).told == ["1-1 metadata", "1-2 custom", "1-3 result", "1-4 end"]
