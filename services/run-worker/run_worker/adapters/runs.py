"""Runs as their users see them: read, list, cancel, and which of some have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from headrace_kit.postgres import Database

from run_worker import errors
from run_worker.adapters.ends import Ended, Ending, end_unowned
from run_worker.adapters.projections import RUNS

GET_RUN: Final = RUNS + "WHERE q.run_id = $1 AND q.uid = $2 AND t.deleted_at IS NULL"

GET_RUNS: Final = RUNS + "WHERE q.run_id = ANY($1::uuid[]) AND q.uid = $2 AND t.deleted_at IS NULL"

# Runs by their own time and the few requests that are still queued by theirs; both from an index. Deleted threads are
# left out before the limit: a short page is the last one.
LIST_RUNS: Final = (
    """
WITH page AS (
  (SELECT run_id, created_at FROM runs
   WHERE uid = $1 AND ($2::uuid IS NULL OR thread_id = $2) AND (cardinality($3::text[]) = 0 OR state = ANY($3))
     AND EXISTS (SELECT FROM threads t WHERE t.thread_id = runs.thread_id AND t.deleted_at IS NULL)
     AND ($4::timestamptz IS NULL OR (created_at, run_id) < ($4, $5))
   ORDER BY created_at DESC, run_id DESC LIMIT $6)
  UNION ALL
  (SELECT run_id, created_at FROM requests
   WHERE uid = $1 AND state = 'queued' AND ($2::uuid IS NULL OR thread_id = $2)
     AND (cardinality($3::text[]) = 0 OR 'queued' = ANY($3))
     AND EXISTS (SELECT FROM threads t WHERE t.thread_id = requests.thread_id AND t.deleted_at IS NULL)
     AND ($4::timestamptz IS NULL OR (created_at, run_id) < ($4, $5))
   ORDER BY created_at DESC, run_id DESC LIMIT $6)
)
"""  # noqa: S608  # constants only
    + RUNS
    + """
JOIN page p ON p.run_id = q.run_id
WHERE t.deleted_at IS NULL
ORDER BY p.created_at DESC, p.run_id DESC LIMIT $6
"""
)

LOCK_ITS_THREAD: Final = """
SELECT t.thread_id FROM threads t
WHERE t.thread_id = (SELECT thread_id FROM requests WHERE run_id = $1 AND uid = $2) AND t.deleted_at IS NULL
FOR UPDATE OF t
"""

LOCK_RUN: Final = "SELECT state, attempt, lease_owner FROM runs WHERE run_id = $1 FOR UPDATE"

CANCEL_QUEUED: Final = """
UPDATE requests SET state = 'cancelled', finished_at = clock_timestamp() WHERE run_id = $1 AND state = 'queued'
"""

MARK_CANCELLED: Final = """
UPDATE runs SET cancel_requested_at = clock_timestamp()
WHERE run_id = $1 AND state = 'running' AND cancel_requested_at IS NULL
"""

TERMINAL: Final = """
SELECT q.run_id FROM requests q LEFT JOIN runs r ON r.run_id = q.run_id
WHERE q.run_id = ANY($1::uuid[]) AND (r.finished_at IS NOT NULL OR q.finished_at IS NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel committed: the end of a run that nobody executed, or the executor that is to be told."""

    ended: Ended | None = None
    owner: UUID | None = None
    """Set when the run is running: `cancel_requested_at` is durable, key and hint may follow."""


async def get_run(database: Database, *, run_id: UUID, uid: str) -> Any:
    """Return the user's run, by the projection of `RUNS`.

    Raises NotFound.
    """
    return found(await database.fetchrow(GET_RUN, run_id, uid), run_id)


async def get_runs(database: Database, *, run_ids: Sequence[UUID], uid: str) -> Sequence[Any]:
    """Return those of the runs that are the user's, in one statement."""
    return await database.fetch(GET_RUNS, list(run_ids), uid)


async def list_runs(
    database: Database,
    *,
    uid: str,
    thread_id: UUID | None,
    states: Iterable[str],
    before: datetime | None,
    before_id: UUID | None,
    limit: int,
) -> Sequence[Any]:
    """Return runs and queued requests as runs, newest first, behind the key given (`listed_at`, `run_id`).

    A request that was cancelled before it became a run is not listed here; it is among the requests.
    """
    return await database.fetch(LIST_RUNS, uid, thread_id, list(states), before, before_id, limit)


async def cancel_run(database: Database, *, run_id: UUID, uid: str) -> Cancelled:
    """Commit a durable cancel; on an ended run it changes nothing.

    A queued request is cancelled, a pending run ends at once, a running one is marked for its owner.
    Raises NotFound.
    """
    async with database.transaction() as connection:
        found(await connection.fetchrow(LOCK_ITS_THREAD, run_id, uid), run_id)
        return await cancel_locked(connection, run_id=run_id)


async def cancel_locked(connection: Any, *, run_id: UUID) -> Cancelled:
    """Cancel a run inside a transaction that holds its thread's lock."""
    run = await connection.fetchrow(LOCK_RUN, run_id)
    if run is None:
        await connection.execute(CANCEL_QUEUED, run_id)
    elif run["state"] == "pending":
        ended = await end_unowned(
            connection, run_id=run_id, expected_attempt=run["attempt"], ending=Ending(state="cancelled")
        )
        return Cancelled(ended=ended)
    elif run["state"] == "running":
        await connection.execute(MARK_CANCELLED, run_id)
        return Cancelled(owner=run["lease_owner"])
    return Cancelled()


async def ended_among(database: Database, run_ids: Sequence[UUID]) -> set[UUID]:
    """Return those of the runs that are terminal."""
    return {row["run_id"] for row in await database.fetch(TERMINAL, list(run_ids))}


def found(row: Any | None, run_id: UUID) -> Any:
    """Return `row`.

    Raises NotFound when it is None.
    """
    if row is None:
        raise errors.not_found("run", run_id)
    return row
