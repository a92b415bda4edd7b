"""Claims: an executor takes pending runs, and runs whose owner's lease has expired, in one statement.

Invariants: a run is taken by exactly one claimer (row lock, SKIP LOCKED, attempt + 1); nothing is taken behind a fence,
before its back-off, after a cancel, or by an executor whose own lease is not alive in the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import orjson
from headrace_kit.postgres import Database

CLAIM = """
WITH me AS (
  SELECT FROM executors WHERE executor_id = $1 AND exited_at IS NULL AND draining_at IS NULL
    AND lease_expires_at > clock_timestamp()
), lost AS (
  SELECT r.run_id, r.attempt FROM runs r JOIN executors x ON x.executor_id = r.lease_owner
  WHERE $3 AND EXISTS (SELECT FROM me) AND r.state = 'running' AND x.executor_id <> $1
    AND (x.exited_at IS NOT NULL OR x.lease_expires_at < clock_timestamp())
    AND r.cancel_requested_at IS NULL AND r.faults + 1 < $4
  ORDER BY r.created_at, r.run_id LIMIT $2 FOR UPDATE OF r SKIP LOCKED
), ready AS (
  SELECT r.run_id FROM runs r JOIN threads t ON t.thread_id = r.thread_id
  WHERE r.state = 'pending' AND r.not_before <= clock_timestamp() AND r.cancel_requested_at IS NULL
    AND t.deleted_at IS NULL
    AND NOT EXISTS (SELECT FROM runs f WHERE f.thread_id = r.thread_id AND f.runtime_cleanup_pending)
), share AS (
  -- As many as are free here, and no more than this executor's part of what waits.
  SELECT (SELECT count(*) FROM ready) AS waiting,
    least($2, ceil((SELECT count(*) FROM ready)::numeric / greatest(1, (
      SELECT count(*) FROM executors x WHERE x.exited_at IS NULL AND x.draining_at IS NULL
        AND x.lease_expires_at > clock_timestamp()))))::bigint AS allowed
), chosen AS (
  SELECT r.run_id FROM runs r
  WHERE EXISTS (SELECT FROM me) AND r.state = 'pending' AND r.not_before <= clock_timestamp()
    AND r.cancel_requested_at IS NULL AND r.run_id IN (SELECT run_id FROM ready)
  ORDER BY r.created_at, r.run_id
  LIMIT (SELECT least(allowed, $2 - (SELECT count(*) FROM lost)) FROM share)
  FOR UPDATE OF r SKIP LOCKED
), closed AS (
  UPDATE attempts a SET finished_at = clock_timestamp(), outcome = 'lease_expired'
  FROM lost WHERE a.run_id = lost.run_id AND a.attempt = lost.attempt AND a.finished_at IS NULL
), taken AS (
  UPDATE runs r SET state = 'running', lease_owner = $1, attempt = r.attempt + 1,
    faults = r.faults + CASE WHEN c.fault THEN 1 ELSE 0 END,
    started_at = coalesce(r.started_at, greatest(clock_timestamp(), r.created_at))
  FROM (SELECT run_id, true AS fault FROM lost UNION ALL SELECT run_id, false FROM chosen) c
  WHERE r.run_id = c.run_id
  RETURNING r.run_id, r.request_id, r.thread_id, r.root_run_id, r.uid, r.agent, r.attempt, r.faults, r.ordinal,
    r.created_at, r.started_at, r.prepared_at, r.first_output_at, c.fault AS taken_over
), opened AS (
  INSERT INTO attempts (run_id, attempt, executor_id) SELECT run_id, attempt, $1 FROM taken
)
SELECT taken.*, q.input, q.command, q.config, q.context, q.checkpoint, q.stream_modes, q.stream_subgraphs,
  q.durability, q.metadata, q.traceparent, (SELECT waiting FROM share) AS waiting,
  -- `closed` is of this statement and cannot be seen by it.
  CASE WHEN p.outcome IS NULL AND taken.taken_over THEN 'lease_expired' ELSE p.outcome END AS previous_outcome,
  p.error ->> 'type' AS previous_error
FROM taken JOIN requests q ON q.request_id = taken.request_id
  LEFT JOIN attempts p ON p.run_id = taken.run_id AND p.attempt = taken.attempt - 1
ORDER BY taken.created_at, taken.run_id
"""

RECORD = """
WITH mine AS (
  UPDATE runs SET manifest = coalesce(manifest, $4::jsonb), manifest_sha256 = coalesce(manifest_sha256, $5),
    manifest_recorded_at = coalesce(manifest_recorded_at, now())
  WHERE run_id = $1 AND attempt = $2 AND lease_owner = $3 AND state = 'running'
  RETURNING run_id, attempt, manifest_sha256
), marked AS (
  UPDATE attempts a SET fingerprint = $5 FROM mine m WHERE a.run_id = m.run_id AND a.attempt = m.attempt
)
SELECT manifest_sha256 FROM mine
"""

EARLIER_MESSAGES = """
SELECT message_id, jsonb_build_array(content, tool_calls)::text AS said
FROM messages WHERE thread_id = $1 AND run_id <> $2 ORDER BY seq
"""


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run under this executor's lease, with all that its execution needs."""

    run_id: UUID
    request_id: UUID
    thread_id: UUID
    root_run_id: UUID
    uid: str
    agent: str
    attempt: int
    faults: int
    ordinal: int
    created_at: datetime
    started_at: datetime
    prepared_at: datetime | None
    first_output_at: datetime | None
    input: Any
    command: Mapping[str, Any] | None
    config: Mapping[str, Any]
    context: Any
    checkpoint: Mapping[str, Any] | None
    stream_modes: Sequence[str]
    stream_subgraphs: bool
    durability: str
    metadata: Mapping[str, Any]
    traceparent: str
    previous: Mapping[str, str] | None = None
    """How the attempt before ended, {outcome, error_type?}; None for the first one."""


async def claim(
    database: Database, *, executor_id: UUID, free: int, take_over: bool, max_faults: int
) -> tuple[list[ClaimedRun], int]:
    """Take at most `free` runs; return them and how many claimable runs are left waiting.

    `take_over` permits runs of expired owners: only for a claimer that was in touch with PostgreSQL for one whole TTL.
    """
    rows = await database.fetch(CLAIM, executor_id, free, take_over, max_faults)
    pending = sum(1 for row in rows if not row["taken_over"])
    return [_run(row) for row in rows], max(0, rows[0]["waiting"] - pending) if rows else 0


async def record_manifest(
    database: Database, *, run_id: UUID, attempt: int, owner: UUID, manifest: str, fingerprint: str
) -> str | None:
    """Store what this run will execute, write-once, and this attempt's fingerprint.

    Return the fingerprint of the run's first manifest; None when the attempt is not this owner's any more.
    """
    first = await database.fetchval(RECORD, run_id, attempt, owner, manifest, fingerprint)
    return cast(str | None, first)


async def earlier_messages(database: Database, *, thread_id: UUID, run_id: UUID) -> dict[str, Any]:
    """Return the thread's messages that other runs wrote, in order: by id, [content, tool_calls]."""
    rows = await database.fetch(EARLIER_MESSAGES, thread_id, run_id)
    return {row["message_id"]: orjson.loads(row["said"]) for row in rows}


def _run(row: Any) -> ClaimedRun:
    return ClaimedRun(
        run_id=row["run_id"],
        request_id=row["request_id"],
        thread_id=row["thread_id"],
        root_run_id=row["root_run_id"],
        uid=row["uid"],
        agent=row["agent"],
        attempt=row["attempt"],
        faults=row["faults"],
        ordinal=row["ordinal"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        prepared_at=row["prepared_at"],
        first_output_at=row["first_output_at"],
        input=_json(row["input"]),
        command=_json(row["command"]),
        config=_json(row["config"]) or {},
        context=_json(row["context"]),
        checkpoint=_json(row["checkpoint"]),
        stream_modes=tuple(row["stream_modes"]),
        stream_subgraphs=row["stream_subgraphs"],
        durability=row["durability"],
        metadata=_json(row["metadata"]) or {},
        traceparent=row["traceparent"],
        previous=_previous(row["previous_outcome"], row["previous_error"]),
    )


def _previous(outcome: str | None, error_type: str | None) -> Mapping[str, str] | None:
    if outcome is None:
        return None
    return {"outcome": outcome} | ({"error_type": error_type} if error_type else {})


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)
