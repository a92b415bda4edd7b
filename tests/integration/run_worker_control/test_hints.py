"""Wakes: to the executor with most free slots, one at a time, and nothing depends on them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from headrace.run.v1 import run_pb2
from run_worker.adapters.executors import roster

from tests.integration.run_worker_control.world import World, recording_executor


async def test_a_submission_wakes_the_freest_executor(world: World) -> None:
    """1. Two executors can claim, one with more free slots.  2. Submit.  3. That one is woken, the other is not."""
    client = world.client()
    async with recording_executor() as (busy, busy_address), recording_executor() as (free, free_address):
        one = await world.add_executor(address=busy_address)
        two = await world.add_executor(address=free_address)
        rows = {row.executor_id: row for row in await roster(world.control)}
        world.hints.update([replace(rows[one], held=40), replace(rows[two], held=1)])
        await client.submit(await client.thread())
        async with asyncio.timeout(5):
            await free.wakes.get()
        assert busy.wakes.empty()
        world.hints.update([])


async def test_an_executor_that_is_gone_costs_nothing(world: World) -> None:
    """1. The freest executor is not reachable, another one is.  2. Submit.  3. The other one is woken."""
    client = world.client()
    async with recording_executor() as (live, address):
        dead_id, live_id = await world.add_executor(), await world.add_executor(address=address)
        rows = {row.executor_id: row for row in await roster(world.control)}
        world.hints.update([rows[dead_id], replace(rows[live_id], held=10)])
        request = await client.submit(await client.thread())
        async with asyncio.timeout(5):
            await live.wakes.get()
        world.hints.update([])
    assert request.state == run_pb2.Request.STATE_DISPATCHED


async def test_nobody_there_to_be_woken(world: World) -> None:
    """1. No executor is known.  2. Submit.  3. The run is pending: whoever comes claims it."""
    client = world.client()
    world.hints.update([])
    request = await client.submit(await client.thread())
    assert (await client.run(request.run_id)).state == run_pb2.Run.STATE_PENDING
