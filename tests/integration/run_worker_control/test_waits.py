"""WaitRun: returns at the end of the run, or says that it has not come."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from google.protobuf.duration_pb2 import Duration
from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb
from headrace_kit.errors import InvalidArgument
from run_worker.loops.waits import RunWaits

from tests.integration.run_worker_control.world import Client, World, error_of


async def test_all_waiters_return_at_the_end(world: World) -> None:
    """1. Thirty clients wait for a run.  2. It completes.  3. All have its end."""
    client = world.client()
    executor = await world.add_executor()
    request = await client.submit(await client.thread())
    waiting = [asyncio.create_task(_wait(client, request.run_id)) for _ in range(30)]
    await world.end(await world.claim_one(executor, request.run_id), executor)
    runs = await asyncio.gather(*waiting)
    assert {run.state for run in runs} == {run_pb2.Run.STATE_COMPLETED}


async def test_a_queued_request_that_is_cancelled_ends_the_wait(world: World) -> None:
    """1. Wait for a queued run.  2. Its request is cancelled.  3. The wait returns cancelled."""
    client = world.client()
    thread_id = await client.thread()
    await client.submit(thread_id)
    queued = await client.submit(thread_id)
    waiting = asyncio.create_task(_wait(client, queued.run_id))
    await client.cancel(queued.run_id)
    assert (await waiting).state == run_pb2.Run.STATE_CANCELLED


async def test_the_timeout_says_not_yet(world: World) -> None:
    """1. Wait 0.2 s for a run that nobody executes.  2. It is answered as pending.  3. Zero seconds asks only once."""
    client = world.client()
    request = await client.submit(await client.thread())
    for milliseconds in (200, 0):
        run = await _wait(client, request.run_id, milliseconds=milliseconds)
        assert run.state == run_pb2.Run.STATE_PENDING


async def test_a_shorter_deadline_is_kept(world: World) -> None:
    """1. Wait 30 s with a deadline of 1 s.  2. The answer comes in time, not DEADLINE_EXCEEDED."""
    client = world.client()
    request = await client.submit(await client.thread())
    run = await _wait(client, request.run_id, milliseconds=30_000, seconds=1.0)
    assert run.state == run_pb2.Run.STATE_PENDING


async def test_a_negative_timeout_is_refused(world: World) -> None:
    """1. Wait minus one second.  2. INVALID_ARGUMENT names the field."""
    client = world.client()
    request = await client.submit(await client.thread())
    error = await error_of(_wait(client, request.run_id, milliseconds=-1000))
    assert isinstance(error, InvalidArgument)
    assert error.field == "timeout"


async def test_stopping_answers_waiters(world: World) -> None:
    """1. A waiter waits in a process that stops.  2. It is answered at once: not ended."""
    waits = RunWaits(world.control)  # one of our own: the world's goes on
    waiting = asyncio.create_task(waits.wait(uuid4(), seconds=30))
    await asyncio.sleep(0)
    waits.close()
    assert await waiting is False


async def _wait(client: Client, run_id: str, *, milliseconds: int = 9_000, seconds: float = 10.0) -> run_pb2.Run:
    timeout = Duration()
    timeout.FromMilliseconds(milliseconds)
    answer = await client.call("WaitRun", pb.WaitRunRequest(run_id=run_id, timeout=timeout), seconds=seconds)
    run: run_pb2.Run = answer.run
    return run
