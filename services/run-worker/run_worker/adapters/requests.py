"""Requests after intake: read them, cancel a queued one, let a paused thread go on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from headrace_kit.postgres import Database

from run_worker import errors
from run_worker.adapters.ends import dispatch_head
from run_worker.adapters.projections import REQUESTS
from run_worker.adapters.threads import get_thread, lock_thread

GET_REQUEST: Final = REQUESTS + "WHERE q.request_id = $1 AND q.uid = $2 AND t.deleted_at IS NULL"

GET_BY_RUN: Final = REQUESTS + "WHERE q.run_id = $1 AND q.uid = $2 AND t.deleted_at IS NULL"

LIST_REQUESTS: Final = (
    REQUESTS  # noqa: S608  # constants only
    + """
WHERE q.thread_id = $1 AND q.uid = $2 AND ($3::timestamptz IS NULL OR (q.created_at, q.seq) < ($3,
  (SELECT c.seq FROM requests c WHERE c.request_id = $4)))
ORDER BY q.created_at DESC, q.seq DESC LIMIT $5
"""
)

LOCK_ITS_THREAD: Final = """
SELECT t.thread_id FROM threads t
WHERE t.thread_id = (SELECT thread_id FROM requests WHERE request_id = $1 AND uid = $2) AND t.deleted_at IS NULL
FOR UPDATE OF t
"""

CANCEL_QUEUED: Final = """
UPDATE requests SET state = 'cancelled', finished_at = clock_timestamp()
WHERE request_id = $1 AND state = 'queued'
RETURNING request_id
"""


async def get_request(database: Database, *, request_id: UUID, uid: str) -> Any:
    """Return the user's request.

    Raises NotFound.
    """
    return _found(await database.fetchrow(GET_REQUEST, request_id, uid), request_id)


async def list_requests(
    database: Database, *, thread_id: UUID, uid: str, before: datetime | None, before_id: UUID | None, limit: int
) -> Sequence[Any]:
    """Return a thread's requests, newest first, behind the key given.

    Raises NotFound without the thread.
    """
    await get_thread(database, thread_id=thread_id, uid=uid)
    return await database.fetch(LIST_REQUESTS, thread_id, uid, before, before_id, limit)


async def cancel_request(database: Database, *, request_id: UUID, uid: str) -> Any:
    """Cancel a queued request and return it; one that was cancelled before is returned as it is.

    Raises NotFound, or FailedPrecondition once it became a run.
    """
    async with database.connection() as connection:
        async with connection.transaction():
            _found(await connection.fetchrow(LOCK_ITS_THREAD, request_id, uid), request_id)
            await connection.fetchval(CANCEL_QUEUED, request_id)
        row = _found(await connection.fetchrow(GET_REQUEST, request_id, uid), request_id)
    if row["state"] == "dispatched":
        raise errors.request_dispatched(request_id, row["run_id"])
    return row


async def continue_thread(database: Database, *, thread_id: UUID, uid: str) -> Any:
    """Dispatch the head of a paused thread's queue and return its request.

    Raises NotFound, or FailedPrecondition when the thread is not paused or nothing is queued.
    """
    async with database.connection() as connection:
        async with connection.transaction():
            thread = await lock_thread(connection, thread_id=thread_id, uid=uid)
            if thread["state"] != "paused":
                raise errors.thread_not_paused(thread_id, thread["state"])
            run_id = await dispatch_head(connection, thread_id=thread_id)
            if run_id is None:
                raise errors.queue_empty(thread_id)
        return _found(await connection.fetchrow(GET_BY_RUN, run_id, uid), run_id)


def _found(row: Any | None, request_id: UUID) -> Any:
    if row is None:
        raise errors.not_found("request", request_id)
    return row
