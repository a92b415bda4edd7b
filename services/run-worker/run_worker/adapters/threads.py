"""Threads: create, read, change, and the lock that orders everything which happens in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from headrace_kit.postgres import Database

from run_worker import errors
from run_worker.adapters.agents import LOADED, loaded_names

CREATE_THREAD: Final = f"""
INSERT INTO threads (thread_id, uid, agent, title, metadata, idempotency_key, body_sha256)
SELECT $1, $2, name, $4, $5::jsonb, $6, $7 FROM agents WHERE name = $3 AND {LOADED}
ON CONFLICT DO NOTHING
RETURNING *
"""  # noqa: S608  # constants only

FIND_BY_KEY: Final = "SELECT * FROM threads WHERE uid = $1 AND idempotency_key = $2"

EXISTS: Final = "SELECT EXISTS (SELECT FROM threads WHERE thread_id = $1)"

GET_THREAD: Final = "SELECT * FROM threads WHERE thread_id = $1 AND uid = $2 AND deleted_at IS NULL"

LIST_THREADS: Final = """
SELECT * FROM threads
WHERE uid = $1 AND deleted_at IS NULL AND ($2::timestamptz IS NULL OR (updated_at, thread_id) < ($2, $3))
ORDER BY updated_at DESC, thread_id DESC LIMIT $4
"""

UPDATE_THREAD: Final = """
UPDATE threads SET title = coalesce($3, title), metadata = coalesce($4::jsonb, metadata), updated_at = now()
WHERE thread_id = $1 AND uid = $2 AND deleted_at IS NULL
RETURNING *
"""

LOCK_THREAD: Final = """
SELECT thread_id, uid, agent, state, active_run_id FROM threads
WHERE thread_id = $1 AND uid = $2 AND deleted_at IS NULL
FOR UPDATE
"""


@dataclass(frozen=True, slots=True)
class NewThread:
    """A thread to create; `metadata` is JSON text, `idempotency_key` None when there is none."""

    thread_id: UUID
    uid: str
    agent: str
    title: str
    metadata: str
    idempotency_key: str | None
    body_sha256: bytes


async def create_thread(database: Database, new: NewThread) -> Any:
    """Create a thread, or return the one that the same key and body made before.

    Raises AlreadyExists for another body, a thread deleted since or a taken id, InvalidArgument for an unknown agent.
    """
    row = await database.fetchrow(
        CREATE_THREAD,
        new.thread_id,
        new.uid,
        new.agent,
        new.title,
        new.metadata,
        new.idempotency_key,
        new.body_sha256,
    )
    if row is not None:
        return row
    if new.idempotency_key is not None:
        first = await database.fetchrow(FIND_BY_KEY, new.uid, new.idempotency_key)
        if first is not None:
            if first["body_sha256"] != new.body_sha256:
                raise errors.key_reused(new.idempotency_key)
            if first["deleted_at"] is not None:
                raise errors.thread_deleted(first["thread_id"])
            return first
    if await database.fetchval(EXISTS, new.thread_id):
        raise errors.thread_exists(new.thread_id)
    raise errors.agent_unknown(new.agent, await loaded_names(database))


async def get_thread(database: Database, *, thread_id: UUID, uid: str) -> Any:
    """Return the user's thread.

    Raises NotFound.
    """
    return found(await database.fetchrow(GET_THREAD, thread_id, uid), thread_id)


async def list_threads(
    database: Database, *, uid: str, before: datetime | None, before_id: UUID | None, limit: int
) -> Sequence[Any]:
    """Return the user's threads, last changed first, behind the key given."""
    return await database.fetch(LIST_THREADS, uid, before, before_id, limit)


async def update_thread(
    database: Database, *, thread_id: UUID, uid: str, title: str | None, metadata: str | None
) -> Any:
    """Change what is not None and return the thread.

    Raises NotFound.
    """
    return found(await database.fetchrow(UPDATE_THREAD, thread_id, uid, title, metadata), thread_id)


async def lock_thread(connection: Any, *, thread_id: UUID, uid: str) -> Any:
    """Lock the user's thread until the end of the caller's transaction: first in the lock order.

    Raises NotFound.
    """
    return found(await connection.fetchrow(LOCK_THREAD, thread_id, uid), thread_id)


def found(row: Any | None, thread_id: UUID) -> Any:
    """Return `row`.

    Raises NotFound when it is None.
    """
    if row is None:
        raise errors.not_found("thread", thread_id)
    return row
