"""The transcript of a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import orjson
from headrace_kit.postgres import Database

from run_worker.adapters.threads import found
from run_worker.domain.transcript import TranscriptMessage

# The thread is the left side: no row means no such thread, one row without a message an empty page. `before` are the
# bytes of the rows in front, so that a page of large messages is not read whole; `found` counts what the limit let in.
LIST_MESSAGES: Final = """
SELECT m.* FROM threads t LEFT JOIN LATERAL (
  SELECT *, count(*) OVER () AS found FROM (
    SELECT *, coalesce(sum(octet_length(content::text) + octet_length(reasoning) + octet_length(tool_calls::text))
      OVER (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
    FROM (SELECT * FROM messages WHERE thread_id = t.thread_id AND seq > $3 ORDER BY seq LIMIT $4) first
  ) sized
) m ON m.before <= $5
WHERE t.thread_id = $1 AND t.uid = $2 AND t.deleted_at IS NULL
ORDER BY m.seq
"""

GET_MESSAGE: Final = "SELECT * FROM messages WHERE run_id = $1 AND message_id = $2"

RUN_MESSAGES: Final = """
SELECT message_id, role, content, reasoning, tool_calls, tool_call_id, name, partial
FROM messages WHERE run_id = $1 AND role <> 'user' ORDER BY seq
"""


async def list_messages(
    database: Database, *, thread_id: UUID, uid: str, after: int, limit: int, page_bytes: int
) -> Sequence[Any]:
    """Return a thread's messages, oldest first, those with a `seq` over `after`: none behind the first `page_bytes`.

    `found` in each row is how many there are within `limit`.
    Raises NotFound without the thread.
    """
    rows = await database.fetch(LIST_MESSAGES, thread_id, uid, after, limit, page_bytes)
    found(rows[0] if rows else None, thread_id)
    return [row for row in rows if row["message_id"] is not None]


async def get_message(database: Database, *, run_id: UUID, message_id: str) -> Any | None:
    """Return one message of a run."""
    return await database.fetchrow(GET_MESSAGE, run_id, message_id)


async def run_messages(database: Database, *, run_id: UUID) -> list[TranscriptMessage]:
    """Return what a run has written to its transcript, for the snapshot before its end."""
    return [
        TranscriptMessage(
            message_id=row["message_id"],
            role=row["role"],
            content=orjson.loads(row["content"]),
            reasoning=row["reasoning"],
            tool_calls=orjson.loads(row["tool_calls"]),
            tool_call_id=row["tool_call_id"],
            name=row["name"],
            partial=row["partial"],
        )
        for row in await database.fetch(RUN_MESSAGES, run_id)
    ]
