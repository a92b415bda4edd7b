"""Intake: one transaction, one decision, also under a race."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb
from headrace_kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from run_worker.adapters.intake import Limits

from tests.integration.run_worker_control.world import World, error_of, serve
from tests.support.servers import TestDatabase

REJECT = run_pb2.MULTITASK_STRATEGY_REJECT
STORED = "SELECT input FROM requests WHERE request_id = $1::text::uuid"
COUNT = "SELECT count(*) FROM requests WHERE thread_id = $1::text::uuid"
ACTIVE = "SELECT count(*) FROM runs WHERE thread_id = $1::text::uuid AND state IN ('pending', 'running')"
IN_ORDER = (
    "SELECT run_id::text FROM requests WHERE thread_id = $1::text::uuid AND state = 'queued' ORDER BY created_at, seq"
)


async def test_a_free_thread_starts_at_once(world: World) -> None:
    """1. Submit to a new thread.  2. The run is pending, the thread busy, the message in the transcript.
    3. The stored input holds the same message id as the transcript.  4. The run waits for nothing yet.
    """
    client = world.client()
    thread_id = await client.thread()
    request = await client.submit(thread_id, "hello")
    thread, run = await client.get_thread(thread_id), await client.run(request.run_id)
    page = await client.call("ListMessages", pb.ListMessagesRequest(thread_id=thread_id))
    stored = json.loads(await world.control.fetchval(STORED, request.request_id))
    assert request.state == run_pb2.Request.STATE_DISPATCHED
    assert (run.state, run.ordinal, run.attempt) == (run_pb2.Run.STATE_PENDING, 1, 0)
    assert not run.HasField("wait")
    assert not request.HasField("wait")
    assert (thread.state, thread.active_run_id) == (run_pb2.Thread.STATE_BUSY, request.run_id)
    assert [(m.role, m.content, m.run_id) for m in page.messages] == [("user", b'"hello"', request.run_id)]
    assert stored["messages"][0]["id"] == page.messages[0].message_id


async def test_a_busy_thread_queues(world: World) -> None:
    """1. Submit three times.  2. The second and third wait, with place, reason and the run in front."""
    client = world.client()
    thread_id = await client.thread()
    first, second, third = [await client.submit(thread_id) for _ in range(3)]
    assert [request.wait.position for request in (second, third)] == [1, 2]
    assert {request.wait.wait_reason for request in (second, third)} == {"behind_run"}
    assert second.wait.run_id == first.run_id
    queued = await client.run(third.run_id)
    assert (queued.state, queued.wait.position) == (run_pb2.Run.STATE_QUEUED, 2)
    assert not queued.timing.HasField("created_at")


async def test_reject_is_never_queued(world: World) -> None:
    """1. Submit, then submit with reject.  2. It is refused and nothing was written."""
    client = world.client()
    thread_id = await client.thread()
    await client.submit(thread_id)
    error = await error_of(client.submit(thread_id, multitask_strategy=REJECT))
    assert isinstance(error, FailedPrecondition)
    assert error.reason == "THREAD_BUSY"
    assert await world.control.fetchval(COUNT, thread_id) == 1


async def test_racing_rejects_make_one_run(world: World) -> None:
    """1. Ten submissions with reject race for a free thread.  2. One becomes a run, nine are refused as busy."""
    client = world.client()
    thread_id = await client.thread()
    racers = [client.submit(thread_id, multitask_strategy=REJECT) for _ in range(10)]
    results = await asyncio.gather(*(_reason(racer) for racer in racers))
    assert Counter(results) == {"": 1, "THREAD_BUSY": 9}
    assert await world.control.fetchval(COUNT, thread_id) == 1


async def test_strategies_to_come_are_refused(world: World) -> None:
    """1. Submit with interrupt.  2. INVALID_ARGUMENT names the field."""
    client = world.client()
    thread_id = await client.thread()
    error = await error_of(client.submit(thread_id, multitask_strategy=run_pb2.MULTITASK_STRATEGY_INTERRUPT))
    assert isinstance(error, InvalidArgument)
    assert (error.reason, error.field) == ("STRATEGY_UNSUPPORTED", "multitask_strategy")


async def test_a_key_gives_the_first_answer_again(world: World) -> None:
    """1. Submit with a key.  2. Again, with the keys of the body in another order: the first answer, nothing new.
    3. Another body: ALREADY_EXISTS.
    """
    client = world.client()
    thread_id = await client.thread()
    one, two = b'{"messages": [], "x": 1}', b'{"x": 1, "messages": []}'
    first = await client.submit_answer(thread_id, input=one, idempotency_key="k")
    again = await client.submit_answer(thread_id, input=two, idempotency_key="k", multitask_strategy=0)
    error = await error_of(client.submit(thread_id, "other", idempotency_key="k"))
    assert (first.replayed, again.replayed) == (False, True)
    assert first.request.run_id == again.request.run_id
    assert isinstance(error, AlreadyExists)
    assert error.reason == "IDEMPOTENCY_KEY_REUSED"
    assert await world.control.fetchval(COUNT, thread_id) == 1


async def test_twenty_racing_duplicates_make_one_request(world: World) -> None:
    """1. Twenty equal submissions with one key race, by reject, the strategy that would refuse the late ones.
    2. All get the same request, one of them as its maker.
    """
    client = world.client()
    thread_id = await client.thread()
    answers = await asyncio.gather(
        *(client.submit_answer(thread_id, idempotency_key="same", multitask_strategy=REJECT) for _ in range(20))
    )
    assert len({answer.request.request_id for answer in answers}) == 1
    assert Counter(answer.replayed for answer in answers) == {False: 1, True: 19}
    assert await world.control.fetchval(COUNT, thread_id) == 1


async def test_a_key_races_over_two_threads(world: World) -> None:
    """1. The same key races on two threads: two different bodies.  2. One wins, the other is told ALREADY_EXISTS."""
    client = world.client()
    threads = [await client.thread() for _ in range(2)]
    results = await asyncio.gather(*(_reason(client.submit(thread, idempotency_key="k")) for thread in threads))
    assert Counter(results) == {"": 1, "IDEMPOTENCY_KEY_REUSED": 1}


async def test_twenty_racing_submissions_run_one_by_one_in_order(world: World) -> None:
    """1. Twenty submissions race for a thread.  2. One run is active, nineteen wait.
    3. Each end starts the next one, in the order of the queue.
    """
    client = world.client()
    executor = await world.add_executor()
    thread_id = await client.thread()
    await asyncio.gather(*(client.submit(thread_id, str(number)) for number in range(20)))
    waiting = [row["run_id"] for row in await world.control.fetch(IN_ORDER, thread_id)]
    order = []
    for _ in range(20):
        assert await world.control.fetchval(ACTIVE, thread_id) == 1
        (run,) = [run for run in await world.claim_all(executor) if str(run.thread_id) == thread_id]
        order.append(str(run.run_id))
        await world.end(run, executor)
    thread = await client.get_thread(thread_id)
    assert len(waiting) == 19
    assert order[1:] == waiting
    assert (thread.state, thread.active_run_id) == (run_pb2.Thread.STATE_IDLE, "")


async def test_an_interrupted_thread_takes_no_message(world: World) -> None:
    """1. A run ends with questions.  2. A new message is refused before anything is written."""
    client = world.client()
    executor = await world.add_executor()
    thread_id = await client.thread()
    request = await client.submit(thread_id)
    await world.end(await world.claim_one(executor, request.run_id), executor, state="interrupted")
    error = await error_of(client.submit(thread_id))
    assert isinstance(error, FailedPrecondition)
    assert error.reason == "THREAD_INTERRUPTED"
    assert "delete the thread" in error.message
    assert await world.control.fetchval(COUNT, thread_id) == 1


async def test_limits_of_what_waits(database: TestDatabase, redis_url: str, tmp_path: Path) -> None:
    """1. Allow 2 pending a user and 3 in all.  2. The third of one user is refused, another user's is taken.
    3. The fourth in all is refused; both say when to come back.
    """
    waiting = "SELECT count(*) FROM runs WHERE state = 'pending'"
    async with serve(database, redis_url, tmp_path) as before:
        there = await before.control.fetchval(waiting) + await before.control.fetchval(
            "SELECT count(*) FROM requests WHERE state = 'queued'"
        )
    async with serve(database, redis_url, tmp_path, limits=Limits(2, there + 3)) as tight:
        one, two, three = tight.client(), tight.client(), tight.client()
        threads = [await client.thread() for client in (one, two, three)]
        await one.submit(threads[0])
        await one.submit(threads[0])
        user = await error_of(one.submit(threads[0]))
        await two.submit(threads[1])
        total = await error_of(three.submit(threads[2]))
    assert isinstance(user, ResourceExhausted)
    assert isinstance(total, ResourceExhausted)
    assert (user.metadata["scope"], total.metadata["scope"]) == ("user", "total")
    assert user.retry_after_seconds
    assert total.retry_after_seconds


async def test_a_pending_run_waits_for_a_slot_after_a_second(world: World) -> None:
    """1. A run is pending for a second and more: it waits for a slot, since it became pending.
    2. It is handed back with a back-off: it waits for that.  3. The back-off is over since just now: for nothing.
    """
    client = world.client()
    request = await client.submit(await client.thread())
    change = "UPDATE runs SET created_at = now() - interval '9 s', not_before = now() {} WHERE run_id = $1::text::uuid"
    waits = []
    for moved in ("- interval '1.5 s'", "+ interval '1 h'", "- interval '0.1 s'"):
        await world.control.execute(change.format(moved), request.run_id)
        run = await client.run(request.run_id)
        waits.append(run.wait.wait_reason)
        if moved.startswith("- interval '1.5"):
            assert run.wait.since.ToDatetime() > run.timing.created_at.ToDatetime()
            assert run.wait.position == 0
    assert waits == ["no_slot", "back_off", ""]


async def test_a_thread_of_a_removed_agent_takes_nothing(world: World) -> None:
    """1. A thread's agent is published; then an executor starts without it.  2. A message is refused with the names of
    what is loaded, nothing is written, and no new thread is made.  3. No executor lives: both are taken.
    """
    client = world.client()
    await world.control.execute("INSERT INTO agents (name, digest) VALUES ('old', 'd')")
    create = pb.CreateThreadRequest(agent="old")
    alive = "UPDATE executors SET exited_at = now() WHERE exited_at IS NULL"
    await world.control.execute(alive)
    thread_id = (await client.call("CreateThread", create)).thread.thread_id
    await world.add_executor()
    error = await error_of(client.submit(thread_id))
    new = await error_of(client.call("CreateThread", create))
    assert isinstance(error, FailedPrecondition)
    assert (error.reason, error.metadata) == ("AGENT_NOT_LOADED", {"agent": "old", "known": "echo"})
    assert isinstance(new, InvalidArgument)
    assert (new.reason, new.metadata) == ("AGENT_NOT_FOUND", {"agent": "old", "known": "echo"})
    assert "echo" in error.message
    assert "echo" in new.message
    assert await world.control.fetchval(COUNT, thread_id) == 0
    await world.control.execute(alive)
    assert (await client.submit(thread_id)).run_id
    assert (await client.call("CreateThread", create)).thread.thread_id


async def test_wrong_input_names_its_field(world: World) -> None:
    """1. Submit with a NUL deep in the input, then with a thread id in the config.  2. The field is named."""
    client = world.client()
    thread_id = await client.thread()
    nul = await error_of(client.submit(thread_id, input=b'{"messages": [{"role": "user", "content": "a\\u0000"}]}'))
    own = await error_of(client.submit(thread_id, config=b'{"configurable": {"thread_id": "x"}}'))
    assert isinstance(nul, InvalidArgument)
    assert nul.field == "input.messages[0].content"
    assert own.field == "config.configurable.thread_id"
    assert await world.control.fetchval(COUNT, thread_id) == 0


async def test_a_known_message_id_replaces_the_message(world: World) -> None:
    """1. Submit a message with an id of the client's own, twice with another text.  2. The transcript holds one."""
    client = world.client()
    thread_id = await client.thread()
    for text in ("one", "two"):
        body = {"messages": [{"role": "user", "content": text, "id": "mine"}]}
        await client.submit(thread_id, input=json.dumps(body).encode())
    page = await client.call("ListMessages", pb.ListMessagesRequest(thread_id=thread_id))
    assert [(m.message_id, m.content) for m in page.messages] == [("mine", b'"two"')]


async def test_the_trace_of_the_caller_is_kept(world: World) -> None:
    """1. Submit with a traceparent.  2. The request is stored and answered with that trace."""
    client = world.client()
    thread_id = await client.thread()
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    answer = await client.call(
        "SubmitRequest",
        pb.SubmitRequestRequest(thread_id=thread_id, input=b"{}"),
        traceparent=f"00-{trace_id}-b7ad6b7169203331-01",
    )
    run = await client.run(answer.request.run_id)
    assert answer.request.trace_id == run.trace_id == trace_id


async def test_a_missing_thread_takes_nothing(world: World) -> None:
    """1. Submit to a thread of another user.  2. NOT_FOUND, as for one that never was."""
    thread_id = await world.client().thread()
    error = await error_of(world.client().submit(thread_id))
    assert isinstance(error, NotFound)
    assert error.reason == "THREAD_NOT_FOUND"


async def _reason(call: object) -> str:
    try:
        await call  # type: ignore[misc]  # a coroutine of Client.submit
    except Exception as error:  # noqa: BLE001  # looked at by the caller
        return (await error_of(_raise(error))).reason
    return ""


async def _raise(error: Exception) -> None:
    raise error
