"""Deleting, copying and pruning checkpoints: whole threads or runs at a time, never by a running graph.

Invariant: a channel's blob goes only when no checkpoint that is left names its version.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_kit.postgres import Database

DELETE_THREADS = """
WITH gone AS (DELETE FROM checkpoints WHERE thread_id = ANY ($1::text[])),
  blobs AS (DELETE FROM checkpoint_blobs WHERE thread_id = ANY ($1::text[]))
DELETE FROM checkpoint_writes WHERE thread_id = ANY ($1::text[])
"""


async def delete_threads(database: Database, thread_ids: Sequence[str]) -> None:
    """Delete everything of these threads, in one statement."""
    await database.execute(DELETE_THREADS, list(thread_ids))


DELETE_RUNS = """
WITH gone AS (
  DELETE FROM checkpoints WHERE run_id::text = ANY ($1::text[]) OR metadata ->> 'run_id' = ANY ($1::text[])
  RETURNING thread_id, checkpoint_ns, checkpoint_id
), writes AS (
  DELETE FROM checkpoint_writes w USING gone
  WHERE (w.thread_id, w.checkpoint_ns, w.checkpoint_id) = (gone.thread_id, gone.checkpoint_ns, gone.checkpoint_id)
)
SELECT DISTINCT thread_id FROM gone
"""

DELETE_UNNAMED_BLOBS = """
DELETE FROM checkpoint_blobs b WHERE b.thread_id = ANY ($1::text[]) AND NOT EXISTS (
  SELECT FROM checkpoints c WHERE c.thread_id = b.thread_id AND c.checkpoint_ns = b.checkpoint_ns
    AND c.checkpoint -> 'channel_versions' ->> b.channel = b.version)
"""


async def delete_runs(database: Database, run_ids: Sequence[str]) -> None:
    """Delete the checkpoints of these runs, their writes, and the blobs that nothing names any more."""
    async with database.transaction() as connection:
        threads = [row["thread_id"] for row in await connection.fetch(DELETE_RUNS, list(run_ids))]
        # A statement of its own: it must see the deletions.
        await connection.execute(DELETE_UNNAMED_BLOBS, threads)


# Copied in the order of seq, so that the copy's latest is the original's latest.
COPY_THREAD = """
WITH blobs AS (
  INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
  SELECT $2, checkpoint_ns, channel, version, type, blob FROM checkpoint_blobs WHERE thread_id = $1
), writes AS (
  INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path)
  SELECT $2, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path
  FROM checkpoint_writes WHERE thread_id = $1
)
INSERT INTO checkpoints
  (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata, run_id, attempt)
SELECT $2, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata, run_id, attempt
FROM checkpoints WHERE thread_id = $1 ORDER BY seq
"""


async def copy_thread(database: Database, source_thread_id: str, target_thread_id: str) -> None:
    """Copy all of a thread's history to a thread that has none, in one statement.

    Raises asyncpg.UniqueViolationError, and changes nothing, if the target has checkpoints with the same ids.
    """
    await database.execute(COPY_THREAD, source_thread_id, target_thread_id)


# A namespace whose newest checkpoint counts towards a delta channel's next snapshot is left alone: its state is rebuilt
# from the writes of its ancestors.
KEEP_LATEST = """
WITH latest AS (
  SELECT DISTINCT ON (thread_id, checkpoint_ns) thread_id, checkpoint_ns, seq,
    metadata ? 'counters_since_delta_snapshot' AS needs_ancestors
  FROM checkpoints WHERE thread_id = ANY ($1::text[]) ORDER BY thread_id, checkpoint_ns, seq DESC
), gone AS (
  DELETE FROM checkpoints c USING latest l
  WHERE c.thread_id = l.thread_id AND c.checkpoint_ns = l.checkpoint_ns AND c.seq < l.seq AND NOT l.needs_ancestors
  RETURNING c.thread_id, c.checkpoint_ns, c.checkpoint_id
)
DELETE FROM checkpoint_writes w USING gone
WHERE (w.thread_id, w.checkpoint_ns, w.checkpoint_id) = (gone.thread_id, gone.checkpoint_ns, gone.checkpoint_id)
"""


async def keep_latest(database: Database, thread_ids: Sequence[str]) -> None:
    """Keep the newest checkpoint of each namespace of these threads."""
    async with database.transaction() as connection:
        await connection.execute(KEEP_LATEST, list(thread_ids))
        await connection.execute(DELETE_UNNAMED_BLOBS, list(thread_ids))
