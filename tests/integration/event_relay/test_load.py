"""What viewers cost: slow ones hurt nobody, Redis sees few commands and few connections, missed events come at once."""

from __future__ import annotations

import asyncio
import time
from statistics import quantiles
from typing import Any

from event_relay.adapters.redis_streams import PAGES_AT_ONCE
from event_relay.server import SERVICE
from headrace.relay.v1 import relay_service_pb2 as pb
from headrace_kit.budget import Budget
from redis.asyncio import Redis

from tests.integration.event_relay.world import World

RUNS = 100


async def test_a_slow_viewer_delays_nobody_and_holds_nothing(here: World, budget: Budget) -> None:
    """1. One viewer opens a run and reads nothing, another reads. 2. 20 MB of events are written. 3. The fast one has
    all of them soon; the relay holds no more than one batch for the slow one. 4. That one then reads: all, once.
    """
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    slow: Any = here.open(ids.run_id)
    await slow.initial_metadata()
    fast = here.follow(ids.run_id)
    await fast.count(1)
    held = 0
    for _ in range(200):
        await writer.add_many(100, data=b'"' + b"x" * 1000 + b'"')
        held = max(held, here.relay.book.tails[ids.run_id].window.size)
        await asyncio.sleep(0)
    written = time.monotonic()
    await fast.count(20_001)
    assert time.monotonic() - written < 5
    assert held <= budget.relay["batch_max_bytes"]
    await writer.add("end")
    await fast.rest()
    assert here.relay.book.viewers == 1
    seen: list[pb.Event] = []
    async for response in slow:
        seen += response.batch.events
    assert [event.id for event in seen] == fast.ids == [f"1-{n}" for n in range(1, 20_003)]


async def test_a_viewer_that_goes_while_it_is_being_sent_to_leaves_nothing(here: World) -> None:
    """1. A viewer reads nothing until the relay waits for it in a write. 2. It cancels. 3. No stream, no tail stays."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    await writer.add_many(8_000, data=b'"' + b"x" * 2000 + b'"')
    slow: Any = here.open(ids.run_id)
    await slow.initial_metadata()
    fast = here.follow(ids.run_id)
    await fast.count(8_001)
    fast.call.cancel()
    slow.cancel()
    await here.nobody_follows()


async def _calls(redis: Redis) -> dict[str, int]:
    stats: dict[str, Any] = await redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(figures["calls"]) for name, figures in stats.items()}


async def _relay_connections(redis: Redis) -> int:
    clients: list[dict[str, str]] = await redis.client_list()
    assert all(client["psub"] == client["sub"] == "0" for client in clients)
    return sum(client["name"] == SERVICE for client in clients)


async def test_redis_commands_do_not_grow_with_runs_or_viewers(here: World) -> None:
    """1. A hundred runs are followed by two viewers each. 2. While all write, reads stay at one per tick. 3. While all
    are idle they fall further. 4. The relay's connections stay the few it was given; nobody subscribes, nobody blocks.
    """
    writers = [here.writer(await here.rows.running()) for _ in range(RUNS)]
    for writer in writers:
        await writer.add("metadata")
    viewings = [here.follow(w.key.split(":")[2], after=after) for w in writers for after in ("", "1-1")]
    for viewing in viewings[::2]:
        await viewing.count(1)

    before, started = await _calls(here.redis), time.monotonic()
    for n in range(2, 32):
        pipeline = here.redis.pipeline(transaction=False)
        for writer in writers:
            pipeline.xadd(writer.key, {"e": "custom", "d": "{}"}, id=f"1-{n}")
        await pipeline.execute()
        await asyncio.sleep(0.05)  # paces the writers
    for viewing in viewings:
        await viewing.until(lambda v: v.ids[-1:] == ["1-31"])
    active_seconds, active = time.monotonic() - started, await _calls(here.redis)
    assert (active["xread"] - before["xread"]) / active_seconds <= 45
    assert await _relay_connections(here.redis) <= PAGES_AT_ONCE + 2

    await asyncio.sleep(3)  # tails slow down by themselves; there is no event for it
    before, started = await _calls(here.redis), time.monotonic()
    await asyncio.sleep(2)  # the measure's own length
    idle_seconds, idle = time.monotonic() - started, await _calls(here.redis)
    idle_rate = (idle["xread"] - before["xread"]) / idle_seconds
    assert idle_rate <= 12
    assert await _relay_connections(here.redis) <= PAGES_AT_ONCE + 2
    assert idle.get("xrange", 0) == before.get("xrange", 0)
    assert [v.ids for v in viewings[:2]] == [[f"1-{n}" for n in range(1, 32)], [f"1-{n}" for n in range(2, 32)]]


async def test_a_viewer_that_comes_back_has_its_first_missed_event_at_once(here: World) -> None:
    """1. Viewers come back to a run of 2,000 events with a cursor. 2. The first missed event: p95 within 100 ms."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    await writer.add_many(2_000)
    waits = []
    for n in range(50):
        started = time.monotonic()
        viewing = here.follow(ids.run_id, after=f"1-{1_000 + n}")
        await viewing.count(1)
        waits.append(time.monotonic() - started)
        viewing.call.cancel()
    assert quantiles(waits, n=20)[-1] <= 0.1
