"""Deleting a thread: invisible at the commit; its rows, keys and files go later, by a durable task."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import orjson
from headrace_kit.ids import new_id
from headrace_kit.postgres import Database

from run_worker import errors
from run_worker.adapters.runs import Cancelled, cancel_locked
from run_worker.adapters.threads import lock_thread

HAS_QUEUE: Final = "SELECT EXISTS (SELECT FROM requests WHERE thread_id = $1 AND state = 'queued')"

CANCEL_QUEUE: Final = """
UPDATE requests SET state = 'cancelled', finished_at = clock_timestamp() WHERE thread_id = $1 AND state = 'queued'
"""

DELETE_THREAD: Final = """
WITH gone AS (
  UPDATE threads SET deleted_at = now(), updated_at = now() WHERE thread_id = $1 AND deleted_at IS NULL
  RETURNING thread_id, uid
)
INSERT INTO durable_tasks (task_id, kind, payload)
SELECT $2, 'delete_thread', $3::jsonb FROM gone
"""


async def delete_thread(
    database: Database, *, thread_id: UUID, uid: str, cancel: bool
) -> tuple[UUID | None, Cancelled]:
    """Delete the user's thread; with `cancel` its active run and its queue are cancelled in the same transaction.

    Returns the run that was active, if any, and what cancelling it committed.
    Raises NotFound, or FailedPrecondition when something is active or queued and `cancel` is not set.
    """
    async with database.transaction() as connection:
        thread = await lock_thread(connection, thread_id=thread_id, uid=uid)
        run_id: UUID | None = thread["active_run_id"]
        if not cancel and (run_id is not None or await connection.fetchval(HAS_QUEUE, thread_id)):
            raise errors.thread_busy(thread_id)
        cancelled = Cancelled()
        if cancel:
            # The queue first: nothing may be dispatched by the end of the active run.
            await connection.execute(CANCEL_QUEUE, thread_id)
            if run_id is not None:
                cancelled = await cancel_locked(connection, run_id=run_id)
        await connection.execute(DELETE_THREAD, thread_id, new_id(), _payload(thread))
        return run_id, cancelled


def _payload(thread: Any) -> str:
    return orjson.dumps({"thread_id": str(thread["thread_id"]), "uid": thread["uid"]}).decode()
