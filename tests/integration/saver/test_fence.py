"""The fence: only the attempt that owns the run writes, also when a takeover commits while its write is on the way."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from headrace_kit.postgres import Database
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint
from run_worker.adapters.saver import Fence, FenceLost, PostgresSaver

from tests.support.servers import TestDatabase

from .conftest import Connection, OwnedRun, until_waiting

TAKE_OVER = "UPDATE runs SET attempt = attempt + 1, lease_owner = $2 WHERE run_id = $1"
METADATA: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}}


def place(run: OwnedRun, checkpoint_id: str | None = None) -> Any:
    configurable = {"thread_id": run.thread_id, "checkpoint_ns": ""}
    return {"configurable": {**configurable, **({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}}


def checkpoint_with(value: Any) -> Checkpoint:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"c": value}
    checkpoint["channel_versions"] = {"c": "1"}
    return checkpoint


async def rows_of(connection: Connection, thread_id: str) -> list[int]:
    return [
        await connection.fetchval(f"SELECT count(*) FROM {table} WHERE thread_id = $1", thread_id)
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    ]


async def test_the_owner_writes_and_its_rows_say_who_it_was(
    graph_database: Database, owned_run: OwnedRun, owner_connection: Connection
) -> None:
    """1. The owner puts a checkpoint and writes. 2. The rows carry run and attempt, the metadata the run."""
    saver = PostgresSaver(graph_database, fence=owned_run.fence)

    stored = await saver.aput(place(owned_run), checkpoint_with([1]), METADATA, {"c": "1"})
    await saver.aput_writes(stored, [("c", [2])], "task")

    row = await owner_connection.fetchrow(
        "SELECT run_id, attempt FROM checkpoints WHERE thread_id = $1", owned_run.thread_id
    )
    assert row is not None
    assert (row["run_id"], row["attempt"]) == (owned_run.fence.run_id, 1)
    found = await saver.aget_tuple(place(owned_run))
    assert found is not None
    assert found.metadata["run_id"] == str(owned_run.fence.run_id)
    assert found.checkpoint["channel_values"] == {"c": [1]}
    assert found.pending_writes == [("task", "c", [2])]


@pytest.mark.parametrize("wrong", ["attempt", "owner", "run"])
async def test_nobody_else_writes(
    graph_database: Database, owned_run: OwnedRun, owner_connection: Connection, wrong: str
) -> None:
    """1. A saver has an old attempt, another owner, or another run. 2. FenceLost, and no row."""
    fence = owned_run.fence
    saver = PostgresSaver(
        graph_database,
        fence=Fence(
            uuid4() if wrong == "run" else fence.run_id,
            0 if wrong == "attempt" else fence.attempt,
            owned_run.rival if wrong == "owner" else fence.owner,
        ),
    )

    with pytest.raises(FenceLost):
        await saver.aput(place(owned_run), checkpoint_with([1]), METADATA, {"c": "1"})
    with pytest.raises(FenceLost):
        await saver.aput_writes(place(owned_run, "x"), [("c", [2])], "task")

    assert await rows_of(owner_connection, owned_run.thread_id) == [0, 0, 0]


async def test_a_repeated_write_is_no_lost_fence(graph_database: Database, owned_run: OwnedRun) -> None:
    """1. The owner stores the same checkpoint and writes twice. 2. Neither is taken for a lost fence."""
    saver = PostgresSaver(graph_database, fence=owned_run.fence)
    checkpoint = checkpoint_with([1])

    for _ in range(2):
        stored = await saver.aput(place(owned_run), checkpoint, METADATA, {"c": "1"})
        await saver.aput_writes(stored, [("c", [2])], "task")

    found = await saver.aget_tuple(place(owned_run))
    assert found is not None
    assert found.pending_writes == [("task", "c", [2])]


@pytest.mark.parametrize("what", ["checkpoint", "writes"])
async def test_a_takeover_that_commits_meanwhile_wins(
    graph_database: Database, owned_run: OwnedRun, owner_connection: Connection, watching: Connection, what: str
) -> None:
    """1. A takeover has the run's row locked. 2. The old owner's write waits for it. 3. The takeover commits.

    4. The write loses: FenceLost, rows unchanged.
    """
    saver = PostgresSaver(graph_database, fence=owned_run.fence)
    stored = await saver.aput(place(owned_run), checkpoint_with([1]), METADATA, {"c": "1"})
    before = await rows_of(owner_connection, owned_run.thread_id)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks, owner_connection.transaction():
        await owner_connection.execute(TAKE_OVER, owned_run.fence.run_id, owned_run.rival)
        if what == "checkpoint":
            late = tasks.create_task(lost(saver.aput(stored, checkpoint_with([2]), METADATA, {"c": "2"})))
        else:
            late = tasks.create_task(lost(saver.aput_writes(stored, [("c", [3])], "task")))
        await until_waiting(watching)
        assert not late.done()

    assert late.result()
    assert await rows_of(owner_connection, owned_run.thread_id) == before


async def lost(write: Any) -> bool:
    with pytest.raises(FenceLost):
        await write
    return True


async def test_a_fenced_saver_deletes_and_copies_nothing(graph_database: Database, owned_run: OwnedRun) -> None:
    """1. A run's saver is asked to delete, copy, prune. 2. It refuses each."""
    saver = PostgresSaver(graph_database, fence=owned_run.fence)

    for call in (
        saver.adelete_thread(owned_run.thread_id),
        saver.adelete_for_runs([str(owned_run.fence.run_id)]),
        saver.acopy_thread(owned_run.thread_id, "other"),
        saver.aprune([owned_run.thread_id]),
    ):
        with pytest.raises(PermissionError):
            await call


async def test_the_reading_role_reads_and_cannot_write(
    database: TestDatabase, graph_database: Database, owned_run: OwnedRun
) -> None:
    """1. The owner stores a checkpoint. 2. A saver on graph_read reads it and is refused a write by PostgreSQL."""
    await PostgresSaver(graph_database, fence=owned_run.fence).aput(
        place(owned_run), checkpoint_with([1]), METADATA, {"c": "1"}
    )
    reading = Database(dsn=database.dsn("graph_read"), pool_max=1, application="test-read")
    await reading.open()
    try:
        saver = PostgresSaver(reading)
        found = await saver.aget_tuple(place(owned_run))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"c": [1]}
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await saver.aput(place(owned_run), checkpoint_with([2]), METADATA, {"c": "2"})
    finally:
        await reading.close()
