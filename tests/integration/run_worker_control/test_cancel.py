"""Cancel: valid from the moment submit returned, durable first, told afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb
from headrace_contract.projection import cancel_key, events_key
from headrace_kit.errors import FailedPrecondition
from run_worker.adapters.executors import roster

from tests.integration.run_worker_control.world import World, error_of, recording_executor, serve, until
from tests.support.servers import TestDatabase


async def test_a_queued_request_is_cancelled_by_its_run_id(world: World) -> None:
    """1. Queue a request.  2. Cancel its run.  3. Request and run are cancelled; the active run goes on."""
    client = world.client()
    thread_id = await client.thread()
    active, queued = await client.submit(thread_id), await client.submit(thread_id)
    run = await client.cancel(queued.run_id)
    answer = await client.call("GetRequest", pb.GetRequestRequest(request_id=queued.request_id))
    assert (run.state, run.attempt) == (run_pb2.Run.STATE_CANCELLED, 0)
    assert answer.request.state == run_pb2.Request.STATE_CANCELLED
    assert (await client.run(active.run_id)).state == run_pb2.Run.STATE_PENDING


async def test_a_pending_run_ends_at_once_and_is_told(world: World) -> None:
    """1. Cancel a pending run.  2. It is cancelled, its thread paused.  3. The stream holds the whole end, in order."""
    client = world.client()
    thread_id = await client.thread()
    request = await client.submit(thread_id)
    run = await client.cancel(request.run_id)
    key = events_key(request.run_id)

    async def told() -> bool:
        return int(await world.redis.xlen(key)) == 4

    await until(told)
    entries: Any = await world.redis.xrange(key)
    assert (run.state, run.attempt) == (run_pb2.Run.STATE_CANCELLED, 1)
    assert run.HasField("cancel_requested_at")
    assert [(i.decode(), fields[b"e"].decode()) for i, fields in entries] == [
        ("1-1", "metadata"),
        ("1-2", "snapshot"),
        ("1-3", "result"),
        ("1-4", "end"),
    ]
    assert (await client.get_thread(thread_id)).state == run_pb2.Thread.STATE_PAUSED


async def test_a_running_run_is_marked_and_its_owner_told(world: World) -> None:
    """1. An executor runs a run.  2. Cancel it: still running, cancel durable.  3. Key with its TTL and hint follow."""
    client = world.client()
    thread_id = await client.thread()
    request = await client.submit(thread_id)
    async with recording_executor() as (recorder, address):
        executor = await world.add_executor(address=address)
        await world.claim_one(executor, request.run_id)
        world.hints.update([row for row in await roster(world.control) if row.executor_id == executor])
        run = await client.cancel(request.run_id)
        async with asyncio.timeout(5):
            hinted = await recorder.cancels.get()
    again = await client.cancel(request.run_id)
    ttl = await world.redis.ttl(cancel_key(request.run_id))
    assert run.state == run_pb2.Run.STATE_RUNNING
    assert hinted == request.run_id
    assert 1700 < ttl <= 1800
    assert again.cancel_requested_at == run.cancel_requested_at


async def test_an_ended_run_is_left_alone(world: World) -> None:
    """1. A run completes.  2. Cancel changes nothing and answers it."""
    client = world.client()
    executor = await world.add_executor()
    request = await client.submit(await client.thread())
    await world.end(await world.claim_one(executor, request.run_id), executor)
    run = await client.cancel(request.run_id)
    assert run.state == run_pb2.Run.STATE_COMPLETED
    assert not run.HasField("cancel_requested_at")
    assert run.output_message_id


async def test_cancel_needs_no_redis(database: TestDatabase, tmp_path: Path) -> None:
    """1. Redis is away.  2. Cancelling a pending and a running run works; PostgreSQL says so."""
    async with serve(database, "redis://127.0.0.1:1", tmp_path) as lonely:
        client = lonely.client()
        executor = await lonely.add_executor()
        running, pending = await client.submit(await client.thread()), None
        await lonely.claim_one(executor, running.run_id)
        pending = await client.submit(await client.thread())
        states = [(await client.cancel(request.run_id)).state for request in (running, pending)]
        marked = (await client.run(running.run_id)).HasField("cancel_requested_at")
    assert states == [run_pb2.Run.STATE_RUNNING, run_pb2.Run.STATE_CANCELLED]
    assert marked


async def test_racing_cancels_and_claims_agree(world: World) -> None:
    """1. Twenty runs are cancelled while an executor claims.  2. Each is cancelled, or running with its cancel set."""
    client = world.client()
    executor = await world.add_executor()
    requests = [await client.submit(await client.thread()) for _ in range(20)]
    runs, _ = await asyncio.gather(
        asyncio.gather(*(client.cancel(request.run_id) for request in requests)), world.claim_all(executor)
    )
    for run in [await client.run(run.run_id) for run in runs]:
        assert run.state in (run_pb2.Run.STATE_CANCELLED, run_pb2.Run.STATE_RUNNING)
        assert run.HasField("cancel_requested_at")


async def test_cancel_request(world: World) -> None:
    """1. Cancel a queued request, twice: cancelled both times.  2. A dispatched one is refused."""
    client = world.client()
    thread_id = await client.thread()
    active, queued = await client.submit(thread_id), await client.submit(thread_id)
    for _ in range(2):
        answer = await client.call("CancelRequest", pb.CancelRequestRequest(request_id=queued.request_id))
        assert answer.request.state == run_pb2.Request.STATE_CANCELLED
    error = await error_of(client.call("CancelRequest", pb.CancelRequestRequest(request_id=active.request_id)))
    assert isinstance(error, FailedPrecondition)
    assert error.reason == "REQUEST_DISPATCHED"
