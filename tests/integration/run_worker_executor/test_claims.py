from __future__ import annotations

import asyncio

from headrace_kit.postgres import Database
from run_worker.adapters.claims import claim
from run_worker.adapters.ends import Ending, end_owned

from tests.integration.run_worker_executor.harness import World


async def executor_pool(world: World) -> Database:
    pool = Database(dsn=world.dsns.dsn("executor"), pool_max=8, application="claimers")
    await pool.open()
    return pool


async def test_eight_claimers_never_share_a_run(world: World) -> None:
    """
    1. 40 runs are pending.
    2. Eight executors claim at the same time until nothing is left.
    3. Each run was handed out once, and each has one open attempt of its owner.
    """
    made = [await world.run(agent="echo") for _ in range(40)]
    owners = [await world.executor_row() for _ in range(8)]
    pool = await executor_pool(world)

    async def take_all(owner: object) -> list[object]:
        mine: list[object] = []
        for _ in range(12):
            runs, _ = await claim(pool, executor_id=owner, free=50, take_over=True, max_faults=3)  # type: ignore[arg-type]  # a UUID
            mine += [run.run_id for run in runs]
        return mine

    try:
        taken = await asyncio.gather(*(take_all(owner) for owner in owners))
    finally:
        await pool.close()
    everything = [run_id for mine in taken for run_id in mine]
    assert sorted(map(str, everything)) == sorted(str(m.run_id) for m in made)
    open_attempts = await world.control.fetchval(
        "SELECT count(*) FROM attempts WHERE finished_at IS NULL AND attempt = 1"
    )
    assert open_attempts == 40


async def test_fence_back_off_cancel_and_deletion_keep_a_run_from_being_claimed(world: World) -> None:
    """
    1. Five runs are pending: one behind its thread's fence, one in back-off, one with a cancel, one of a deleted one.
    2. An executor claims.
    3. It gets the fifth only.
    """
    fenced, early, cancelled, deleted, free = [await world.run(agent="echo") for _ in range(5)]
    former = await world.run(agent="echo")
    await world.control.execute(
        "UPDATE runs SET runtime_cleanup_pending = true, thread_id = $2, state = 'failed', error = '{}', ordinal = 99,"
        " finished_at = now(), result_event_id = '1-1', end_event_id = '1-2' WHERE run_id = $1",
        former.run_id,
        fenced.thread_id,
    )
    await world.control.execute(
        "UPDATE runs SET not_before = now() + interval '1 hour' WHERE run_id = $1", early.run_id
    )
    await world.cancel(cancelled)
    await world.control.execute("UPDATE threads SET deleted_at = now() WHERE thread_id = $1", deleted.thread_id)
    owner = await world.executor_row()
    pool = await executor_pool(world)
    try:
        runs, left = await claim(pool, executor_id=owner, free=10, take_over=True, max_faults=3)
    finally:
        await pool.close()
    assert [run.run_id for run in runs] == [free.run_id]
    assert left == 0


async def test_a_claim_leaves_other_executors_their_share(world: World) -> None:
    """
    1. Five runs are pending and two executors live.
    2. One with ten free slots claims: it gets three and learns that two are left.
    3. An executor that drains, and one whose lease is over, get nothing.
    """
    for _ in range(5):
        await world.run(agent="echo")
    one, _other = await world.executor_row(), await world.executor_row()
    late = await world.executor_row(expires_in=-1)
    pool = await executor_pool(world)
    try:
        runs, left = await claim(pool, executor_id=one, free=10, take_over=True, max_faults=3)
        assert (len(runs), left) == (3, 2)
        assert (await claim(pool, executor_id=late, free=10, take_over=True, max_faults=3))[0] == []
        await world.control.execute("UPDATE executors SET draining_at = now() WHERE executor_id = $1", one)
        assert (await claim(pool, executor_id=one, free=10, take_over=True, max_faults=3))[0] == []
    finally:
        await pool.close()


async def test_a_takeover_fences_the_former_owner_off(world: World) -> None:
    """
    1. A run is owned by an executor whose lease has expired.
    2. Without permission to take over nothing is claimed; with it the run goes on as attempt 2 with one fault.
    3. The former owner's end changes nothing.
    """
    made = await world.run(agent="echo")
    lost = await world.executor_row(expires_in=-1)
    await world.hand_take(made, lost)
    mine = await world.executor_row()
    pool = await executor_pool(world)
    try:
        assert (await claim(pool, executor_id=mine, free=10, take_over=False, max_faults=3))[0] == []
        [run] = (await claim(pool, executor_id=mine, free=10, take_over=True, max_faults=3))[0]
        assert (run.run_id, run.attempt, run.faults) == (made.run_id, 2, 1)
        assert run.previous == {"outcome": "lease_expired"}
        async with pool.transaction() as connection:
            stale = await end_owned(
                connection, run_id=made.run_id, attempt=1, owner=lost, last_n=3, ending=Ending("failed", error={})
            )
    finally:
        await pool.close()
    assert stale is None
    row = await world.row(made.run_id)
    assert (row["state"], row["lease_owner"]) == ("running", mine)
    outcomes = await world.control.fetch("SELECT outcome FROM attempts WHERE run_id = $1 ORDER BY attempt", made.run_id)
    assert [row["outcome"] for row in outcomes] == ["lease_expired", None]


async def test_a_takeover_leaves_cancelled_and_worn_out_runs_to_control(world: World) -> None:
    """
    1. Two runs of a lost executor: one was cancelled, one has had two faults.
    2. Another executor may take over.
    3. It takes neither.
    """
    lost = await world.executor_row(expires_in=-1)
    cancelled, worn = await world.run(agent="echo"), await world.run(agent="echo")
    for made in (cancelled, worn):
        await world.hand_take(made, lost)
    await world.cancel(cancelled)
    await world.control.execute("UPDATE runs SET faults = 2 WHERE run_id = $1", worn.run_id)
    mine = await world.executor_row()
    pool = await executor_pool(world)
    try:
        assert (await claim(pool, executor_id=mine, free=10, take_over=True, max_faults=3))[0] == []
    finally:
        await pool.close()
