"""Runs that lost their executor: given back at once, cancelled, or failed at the third fault."""

from __future__ import annotations

import asyncio
from uuid import UUID

from headrace.run.v1 import run_pb2
from run_worker.adapters.ends import Ended
from run_worker.adapters.executors import roster
from run_worker.adapters.reclaims import (
    FaultPolicy,
    abandon_lost,
    forgotten_executors,
    reclaim_executor,
    sweep_expired,
    sweep_pending,
)
from run_worker.loops.contact import Contact
from run_worker.loops.reclaim import Reclaim

from tests.integration.run_worker_control.world import World

POLICY = FaultPolicy(max_faults=3, back_off_seconds=(1.0, 4.0))
SET_FAULTS = "UPDATE runs SET faults = $2 WHERE run_id = $1::text::uuid"
ATTEMPT = "SELECT outcome FROM attempts WHERE run_id = $1::text::uuid ORDER BY attempt DESC LIMIT 1"
EXPIRE = "UPDATE executors SET lease_expires_at = now() - interval '1 second' WHERE executor_id = $1"
EXPIRE_LONG_AGO = "UPDATE executors SET lease_expires_at = now() - interval '1 hour' WHERE executor_id = $1"
EXITED = "SELECT exited_at IS NOT NULL AND exit_reason = 'signal 9' FROM executors WHERE executor_id = $1"
MARK = "UPDATE executors SET exited_at = now() WHERE executor_id = $1"
ASK_CANCEL = "UPDATE runs SET cancel_requested_at = now() WHERE run_id = $1::text::uuid"


async def test_a_crash_gives_runs_back(world: World) -> None:
    """1. An executor with a run exits.  2. The run is pending with one fault, behind a back-off of a second, its
    attempt closed as crashed.  3. The row says how it exited; doing it again changes nothing.
    """
    client = world.client()
    executor = await world.add_executor()
    request = await client.submit(await client.thread())
    await world.claim_one(executor, request.run_id)
    due = [await _reclaim(world, executor, []) for _ in range(2)]
    run = await client.run(request.run_id)
    assert (run.state, run.attempt, run.faults) == (run_pb2.Run.STATE_PENDING, 1, 1)
    assert run.wait.wait_reason == "back_off"
    assert 0.5 < due[0][0] <= 1.0
    assert due[1] == []
    assert await world.control.fetchval(ATTEMPT, request.run_id) == "crashed"
    assert await world.control.fetchval(EXITED, executor) is True


async def test_a_cancelled_run_ends_with_its_executor(world: World) -> None:
    """1. A running run has its cancel.  2. Its executor exits.  3. The run is cancelled under the next attempt."""
    client = world.client()
    executor = await world.add_executor()
    request = await client.submit(await client.thread())
    await world.claim_one(executor, request.run_id)
    await client.cancel(request.run_id)
    told: list[Ended] = []
    await _reclaim(world, executor, told)
    run = await client.run(request.run_id)
    assert (run.state, run.attempt, run.faults) == (run_pb2.Run.STATE_CANCELLED, 2, 0)
    assert [(end.attempt, end.result_event_id, end.end_event_id) for end in told] == [(2, "2-3", "2-4")]


async def test_the_third_fault_fails_the_run(world: World) -> None:
    """1. A run with two faults loses its executor.  2. It is failed with its reason, and published."""
    client = world.client()
    executor = await world.add_executor()
    request = await client.submit(await client.thread())
    await world.claim_one(executor, request.run_id)
    await world.control.execute(SET_FAULTS, request.run_id, 2)
    told: list[Ended] = []
    await _reclaim(world, executor, told)
    run = await client.run(request.run_id)
    assert (run.state, run.faults, run.error.type) == (run_pb2.Run.STATE_FAILED, 3, "faults_exhausted")
    assert len(told) == 1


async def test_an_expired_lease_is_swept_only_for_ends(world: World) -> None:
    """1. Three runs of an expired executor: plain, cancelled, with two faults.  2. The sweep ends the last two and
    leaves the first for a takeover.  3. A live executor's cancelled run is left to its owner.
    """
    client = world.client()
    lost, live = await world.add_executor(), await world.add_executor()
    plain, cancelled, faulty, owned = [await client.submit(await client.thread()) for _ in range(4)]
    claimed = {str(run.run_id) for run in await world.claim_all(lost)}
    assert {plain.run_id, cancelled.run_id, faulty.run_id, owned.run_id} <= claimed
    await world.control.execute("UPDATE runs SET lease_owner = $2 WHERE run_id = $1::text::uuid", owned.run_id, live)
    for request in (cancelled, owned):
        await client.cancel(request.run_id)
    await world.control.execute(SET_FAULTS, faulty.run_id, 2)
    await world.control.execute(EXPIRE, lost)
    told: list[Ended] = []
    await sweep_expired(world.control, policy=POLICY, tell=told.append)
    states = [(await client.run(request.run_id)).state for request in (plain, cancelled, faulty, owned)]
    assert states == [
        run_pb2.Run.STATE_RUNNING,
        run_pb2.Run.STATE_CANCELLED,
        run_pb2.Run.STATE_FAILED,
        run_pb2.Run.STATE_RUNNING,
    ]
    assert {str(end.run_id) for end in told} == {cancelled.run_id, faulty.run_id}


async def test_a_pending_run_with_a_cancel_is_swept(world: World) -> None:
    """1. A cancel meets a run that is pending.  2. The sweep ends it as cancelled."""
    client = world.client()
    request = await client.submit(await client.thread())
    await world.control.execute(ASK_CANCEL, request.run_id)
    await sweep_pending(world.control, policy=POLICY, tell=lambda end: None)
    assert (await client.run(request.run_id)).state == run_pb2.Run.STATE_CANCELLED


async def test_an_executor_that_nobody_renews_is_given_up(world: World) -> None:
    """1. One executor's lease ran out a second ago, another one's an hour ago.  2. Only the second is given up."""
    lately, long_ago = await world.add_executor(), await world.add_executor()
    await world.control.execute(EXPIRE, lately)
    await world.control.execute(EXPIRE_LONG_AGO, long_ago)
    assert long_ago in await abandon_lost(world.control)
    assert lately in {row.executor_id for row in await roster(world.control)}
    assert long_ago not in {row.executor_id for row in await roster(world.control)}


async def test_the_loop_reclaims_what_it_is_told_and_what_was_forgotten(world: World) -> None:
    """1. One exit is told to the loop, another executor is known to have exited and owns a run.  2. Both are done."""
    client = world.client()
    told, forgotten = await world.add_executor(), await world.add_executor()
    request = await client.submit(await client.thread())
    await world.claim_one(told, request.run_id)
    other = await client.submit(await client.thread())
    await world.claim_one(forgotten, other.run_id)
    await world.control.execute(MARK, forgotten)
    loop = Reclaim(database=world.control, aftermath=world.aftermath, policy=POLICY, contact=Contact(ttl_seconds=10))
    loop.exited(told, "signal 9")
    for executor in await forgotten_executors(world.control):
        loop.exited(executor, "exit known before")
    running = asyncio.create_task(loop.run())
    async with asyncio.timeout(10):
        await loop.settled()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    runs = [await client.run(run_id) for run_id in (request.run_id, other.run_id)]
    assert [run.state for run in runs] == [run_pb2.Run.STATE_PENDING] * 2


async def _reclaim(world: World, executor: UUID, told: list[Ended]) -> list[float]:
    return list(
        await reclaim_executor(world.control, executor_id=executor, reason="signal 9", policy=POLICY, tell=told.append)
    )
