"""The queue of a thread after an end: goes on by itself, pauses, or waits for an answer. And deleting it all."""

from __future__ import annotations

import pytest
from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb
from headrace_kit.errors import FailedPrecondition, NotFound

from tests.integration.run_worker_control.world import World, error_of

TASKS = "SELECT count(*) FROM durable_tasks WHERE kind = 'delete_thread' AND payload ->> 'thread_id' = $1"
STATES = """
SELECT coalesce(r.state, q.state) AS state, r.cancel_requested_at IS NOT NULL AS cancel
FROM requests q LEFT JOIN runs r ON r.run_id = q.run_id WHERE q.thread_id = $1::text::uuid ORDER BY q.created_at, q.seq
"""


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_a_bad_end_pauses_the_queue(world: World, state: str) -> None:
    """1. A run with a queue behind it fails, or is cancelled.  2. The thread is paused and the queue says so.
    3. A new message queues as well.  4. Continue starts the head.
    """
    client = world.client()
    executor = await world.add_executor()
    thread_id = await client.thread()
    first, second = await client.submit(thread_id), await client.submit(thread_id)
    claimed = await world.claim_one(executor, first.run_id)
    if state == "cancelled":
        await client.cancel(first.run_id)
    await world.end(claimed, executor, state=state)
    third = await client.submit(thread_id)
    waiting = await client.call("GetRequest", pb.GetRequestRequest(request_id=second.request_id))
    thread = await client.get_thread(thread_id)
    answer = await client.call("ContinueThread", pb.ContinueThreadRequest(thread_id=thread_id))
    assert thread.state == run_pb2.Thread.STATE_PAUSED
    assert (waiting.request.wait.wait_reason, third.wait.position) == ("paused", 2)
    assert answer.request.request_id == second.request_id
    assert answer.request.state == run_pb2.Request.STATE_DISPATCHED
    assert (await client.run(second.run_id)).ordinal == 2


async def test_a_paused_thread_without_a_queue_takes_a_message(world: World) -> None:
    """1. The only run is cancelled.  2. Continue has nothing to start.  3. A message starts at once."""
    client = world.client()
    thread_id = await client.thread()
    await client.cancel((await client.submit(thread_id)).run_id)
    error = await error_of(client.call("ContinueThread", pb.ContinueThreadRequest(thread_id=thread_id)))
    request = await client.submit(thread_id)
    busy = await error_of(client.call("ContinueThread", pb.ContinueThreadRequest(thread_id=thread_id)))
    assert isinstance(error, FailedPrecondition)
    assert (error.reason, busy.reason) == ("QUEUE_EMPTY", "THREAD_NOT_PAUSED")
    assert request.state == run_pb2.Request.STATE_DISPATCHED


async def test_delete_refuses_while_something_is_active(world: World) -> None:
    """1. Delete a busy thread: refused.  2. With cancel: invisible at once, all cancelled, a task remembers it."""
    client = world.client()
    executor = await world.add_executor()
    thread_id = await client.thread()
    active = await client.submit(thread_id)
    await world.claim_one(executor, active.run_id)
    await client.submit(thread_id)
    error = await error_of(client.call("DeleteThread", pb.DeleteThreadRequest(thread_id=thread_id)))
    await client.call("DeleteThread", pb.DeleteThreadRequest(thread_id=thread_id, cancel=True))
    gone = [await error_of(client.get_thread(thread_id)), await error_of(client.run(active.run_id))]
    states = [(row["state"], row["cancel"]) for row in await world.control.fetch(STATES, thread_id)]
    assert error.reason == "THREAD_BUSY"
    assert all(isinstance(answer, NotFound) for answer in gone)
    assert states == [("running", True), ("cancelled", False)]
    assert await world.control.fetchval(TASKS, thread_id) == 1


async def test_delete_ends_a_pending_run(world: World) -> None:
    """1. Delete a thread with a pending run and a queue, with cancel.  2. Nothing of it is left to run."""
    client = world.client()
    thread_id = await client.thread()
    for _ in range(3):
        await client.submit(thread_id)
    await client.call("DeleteThread", pb.DeleteThreadRequest(thread_id=thread_id, cancel=True))
    assert [row["state"] for row in await world.control.fetch(STATES, thread_id)] == ["cancelled"] * 3


async def test_an_idle_thread_is_deleted_once(world: World) -> None:
    """1. Delete an idle thread.  2. A second delete finds nothing."""
    client = world.client()
    thread_id = await client.thread()
    await client.call("DeleteThread", pb.DeleteThreadRequest(thread_id=thread_id))
    assert isinstance(
        await error_of(client.call("DeleteThread", pb.DeleteThreadRequest(thread_id=thread_id))), NotFound
    )
