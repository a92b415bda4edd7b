from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import orjson
import pytest
from headrace_kit.postgres import Database
from run_worker.adapters.ends import Ending, end_owned, end_unowned, read_ended
from run_worker.domain.transcript import TranscriptMessage

from tests.integration.run_worker_executor.harness import Made, World

ANSWER = TranscriptMessage(message_id="m1", role="assistant", content="an answer \x00 with NUL")
DONE = Ending("completed", output_message_id="m1", messages=[ANSWER], usage={"output_tokens": 3})


@pytest.fixture
async def pool(world: World) -> AsyncIterator[Database]:
    pool = Database(dsn=world.dsns.dsn("executor"), pool_max=4, application="ends")
    await pool.open()
    yield pool
    await pool.close()


async def owned(world: World) -> tuple[Made, UUID]:
    owner = await world.executor_row()
    made = await world.run(agent="echo")
    await world.hand_take(made, owner)
    return made, owner


async def test_a_completed_run_dispatches_the_head_of_the_queue(world: World, pool: Database) -> None:
    """
    1. Two requests are queued behind a run.
    2. The run completes.
    3. In the same transaction the older one became the thread's run; the other still waits.
    """
    made, owner = await owned(world)
    first = await world.request(made.thread_id, agent="echo", queued=True)
    second = await world.request(made.thread_id, agent="echo", queued=True)
    statements: list[str] = []
    async with pool.transaction() as connection:
        connection.add_query_logger(lambda record: statements.append(record.query))
        ended = await end_owned(connection, run_id=made.run_id, attempt=1, owner=owner, last_n=7, ending=DONE)
    assert ended is not None
    assert ended.dispatched_run_id == first.run_id
    assert (ended.result_event_id, ended.end_event_id) == ("1-8", "1-9")
    assert len([sql for sql in statements if sql != "COMMIT;"]) == 3
    thread = await world.one("SELECT * FROM threads WHERE thread_id = $1", made.thread_id)
    assert (thread["state"], thread["active_run_id"], thread["runs_count"]) == ("busy", first.run_id, 2)
    waiting = await world.control.fetchval("SELECT state FROM requests WHERE request_id = $1", second.request_id)
    assert waiting == "queued"
    result = orjson.loads(ended.result)
    assert (result["status"], result["output_message_id"], result["usage"]) == ("completed", "m1", {"output_tokens": 3})
    [message] = await world.messages(made.thread_id)
    assert message["content"] == "an answer � with NUL"


@pytest.mark.parametrize(
    ("ending", "thread_state"),
    [
        (Ending("failed", error={"type": "graph_error", "message": "", "details": {}}), "paused"),
        (Ending("interrupted", interrupts=[{"id": "i", "value": 1}]), "interrupted"),
        (DONE, "idle"),
    ],
)
async def test_an_end_leaves_the_thread_in_its_state(
    world: World, pool: Database, ending: Ending, thread_state: str
) -> None:
    """
    1. A run ends.
    2. Its thread has no active run any more and the state that belongs to this ending.
    """
    made, owner = await owned(world)
    async with pool.transaction() as connection:
        assert await end_owned(connection, run_id=made.run_id, attempt=1, owner=owner, last_n=1, ending=ending)
    thread = await world.one("SELECT * FROM threads WHERE thread_id = $1", made.thread_id)
    assert (thread["state"], thread["active_run_id"]) == (thread_state, None)
    attempt = await world.one("SELECT outcome FROM attempts WHERE run_id = $1", made.run_id)
    assert attempt["outcome"] == ending.state


async def test_durable_cancel_wins_over_completed(world: World, pool: Database) -> None:
    """
    1. A cancel was committed; the owner, who does not know yet, completes the run.
    2. Nothing changes. As cancelled it ends.
    """
    made, owner = await owned(world)
    await world.cancel(made)
    async with pool.transaction() as connection:
        lost = await end_owned(connection, run_id=made.run_id, attempt=1, owner=owner, last_n=1, ending=DONE)
    assert lost is None
    assert await world.messages(made.thread_id) == []
    async with pool.transaction() as connection:
        ended = await end_owned(
            connection,
            run_id=made.run_id,
            attempt=1,
            owner=owner,
            last_n=1,
            ending=Ending("cancelled", messages=[ANSWER]),
        )
    assert ended is not None
    assert ended.state == "cancelled"


async def test_an_owner_cannot_cancel_without_a_durable_cancel(world: World, pool: Database) -> None:
    """
    1. Nobody cancelled the run.
    2. Its owner ends it as cancelled: refused.
    """
    made, owner = await owned(world)
    async with pool.transaction() as connection:
        ended = await end_owned(
            connection, run_id=made.run_id, attempt=1, owner=owner, last_n=1, ending=Ending("cancelled")
        )
    assert ended is None


async def test_an_end_without_owner_needs_the_owner_gone_and_bumps_the_attempt(world: World, pool: Database) -> None:
    """
    1. A run has a live owner: control cannot end it.
    2. The owner's lease expires: control ends it under attempt 2, and the former owner's end changes nothing.
    """
    made, owner = await owned(world)
    exhausted = Ending("failed", error={"type": "faults_exhausted", "message": "", "details": {}})
    async with world.control.transaction() as connection:
        assert await end_unowned(connection, run_id=made.run_id, expected_attempt=1, ending=exhausted) is None
    await world.control.execute("UPDATE executors SET lease_expires_at = now() - interval '1 s'")
    async with world.control.transaction() as connection:
        ended = await end_unowned(
            connection,
            run_id=made.run_id,
            expected_attempt=1,
            ending=exhausted,
            attempt_outcome="lease_expired",
            count_fault=True,
        )
    assert ended is not None
    assert (ended.attempt, ended.result_event_id, ended.end_event_id) == (2, "2-3", "2-4")
    async with pool.transaction() as connection:
        assert await end_owned(connection, run_id=made.run_id, attempt=1, owner=owner, last_n=1, ending=DONE) is None
    row = await world.row(made.run_id)
    assert (row["state"], row["faults"]) == ("failed", 1)


async def test_a_run_that_touched_a_runtime_ends_behind_its_fence(world: World, pool: Database) -> None:
    """
    1. A run committed runtime_touched_at.
    2. It completes: the fence is set in the same transaction, and says that `end` may not be told yet.
    """
    made, owner = await owned(world)
    await world.control.execute("UPDATE runs SET runtime_touched_at = now() WHERE run_id = $1", made.run_id)
    async with pool.transaction() as connection:
        ended = await end_owned(connection, run_id=made.run_id, attempt=1, owner=owner, last_n=1, ending=DONE)
    assert ended is not None
    assert ended.fenced
    assert (await world.row(made.run_id))["runtime_cleanup_pending"]


async def test_an_end_is_read_back_by_run_and_attempt(world: World, pool: Database) -> None:
    """
    1. A run was ended by attempt 1 and the answer was lost.
    2. Reading back by attempt 1 gives the same result; by another attempt nothing.
    """
    made, owner = await owned(world)
    async with pool.transaction() as connection:
        ended = await end_owned(connection, run_id=made.run_id, attempt=1, owner=owner, last_n=1, ending=DONE)
        assert ended is not None
    async with pool.connection() as connection:
        again = await read_ended(connection, run_id=made.run_id, attempt=1)
        assert again is not None
        assert (again.result, again.end_event_id) == (ended.result, ended.end_event_id)
        assert await read_ended(connection, run_id=made.run_id, attempt=2) is None
