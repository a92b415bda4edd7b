"""Intake: a submission becomes a request, its user messages and, when the thread is free, a run, in one transaction.

Invariant: everything is decided under the thread's row lock, by a statement whose snapshot is younger than the lock.
Round trips: begin, lock, intake, commit, and the projection of the request; one more for a duplicate.

    verdict       when                                           written
    replay        the key is known                               nothing; the first answer again (or ALREADY_EXISTS)
    missing       no such thread of this user                    nothing
    agent_gone    executors live, and none has its agent         nothing
    interrupted   the thread waits for an answer                 nothing
    busy          strategy reject, thread busy or queued         nothing
    user_limit    the user's pending requests are used up        nothing
    total_limit   all pending requests are used up               nothing
    dispatch      the thread is idle, or paused without a queue  request, messages, run; the thread is busy
    queue         else                                           request and messages
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import orjson
from headrace_kit.postgres import Database

from run_worker import errors
from run_worker.adapters.agents import LOADED, loaded_names
from run_worker.adapters.projections import REQUESTS
from run_worker.domain.inputs import Submission

LOCK_THREAD: Final = """
SELECT true FROM threads WHERE thread_id = $1 AND uid = $2 AND deleted_at IS NULL FOR UPDATE
"""

# The counts are not locked: under a race the limits give way by as many requests as race.
INTAKE: Final = f"""
WITH waiting AS (
  SELECT count(*) AS total, count(*) FILTER (WHERE uid = $2) AS mine
  FROM (SELECT uid FROM requests WHERE state = 'queued' UNION ALL SELECT uid FROM runs WHERE state = 'pending') w
), facts AS (
  SELECT t.agent, w.total, w.mine,
    CASE WHEN $6::text IS NOT NULL AND EXISTS (SELECT FROM requests WHERE uid = $2 AND idempotency_key = $6)
           THEN 'replay'
         WHEN NOT $21 OR t.thread_id IS NULL THEN 'missing'
         WHEN NOT EXISTS (SELECT FROM agents WHERE name = t.agent AND {LOADED}) THEN 'agent_gone'
         WHEN t.state = 'interrupted' THEN 'interrupted'
         WHEN t.state = 'idle' OR (t.state = 'paused' AND NOT q.waits) THEN
           CASE WHEN w.mine >= $19 THEN 'user_limit' WHEN w.total >= $20 THEN 'total_limit' ELSE 'dispatch' END
         WHEN $5 = 'reject' THEN 'busy'
         WHEN w.mine >= $19 THEN 'user_limit'
         WHEN w.total >= $20 THEN 'total_limit'
         ELSE 'queue' END AS verdict
  FROM waiting w
    CROSS JOIN (SELECT EXISTS (SELECT FROM requests WHERE thread_id = $1 AND state = 'queued') AS waits) q
    LEFT JOIN threads t ON t.thread_id = $1 AND t.uid = $2 AND t.deleted_at IS NULL
), request AS (
  INSERT INTO requests (request_id, thread_id, uid, agent, run_id, state, multitask_strategy, idempotency_key,
    body_sha256, input, config, context, stream_modes, stream_subgraphs, durability, metadata, traceparent,
    dispatched_at)
  SELECT $3, $1, $2, f.agent, $4, CASE f.verdict WHEN 'dispatch' THEN 'dispatched' ELSE 'queued' END, $5, $6,
    $7, $8::jsonb, $9::jsonb, $10::jsonb, $11, $12, $13, $14::jsonb, $15,
    CASE f.verdict WHEN 'dispatch' THEN now() END
  FROM facts f WHERE f.verdict IN ('dispatch', 'queue')
  ON CONFLICT (uid, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
  RETURNING request_id, thread_id, run_id, uid, agent, state
), transcript AS (
  INSERT INTO messages (thread_id, message_id, run_id, request_id, role, content, name)
  SELECT q.thread_id, m.id, q.run_id, q.request_id, 'user', m.content::jsonb, m.name
  FROM request q, unnest($16::text[], $17::text[], $18::text[]) WITH ORDINALITY AS m (id, content, name, place)
  ORDER BY m.place
  -- A client that sends a known message again replaces it, as LangGraph's add_messages does in the checkpoint.
  ON CONFLICT (thread_id, message_id) DO UPDATE SET content = excluded.content, name = excluded.name
  WHERE messages.role = 'user'
), thread AS (
  UPDATE threads t SET updated_at = now(),
    state = CASE q.state WHEN 'dispatched' THEN 'busy' ELSE t.state END,
    active_run_id = CASE q.state WHEN 'dispatched' THEN q.run_id ELSE t.active_run_id END,
    latest_run_id = CASE q.state WHEN 'dispatched' THEN q.run_id ELSE t.latest_run_id END,
    runs_count = t.runs_count + CASE q.state WHEN 'dispatched' THEN 1 ELSE 0 END
  FROM request q WHERE t.thread_id = q.thread_id
  RETURNING t.runs_count
), run AS (
  INSERT INTO runs (run_id, request_id, thread_id, uid, agent, ordinal, root_run_id)
  SELECT q.run_id, q.request_id, q.thread_id, q.uid, q.agent, thread.runs_count, q.run_id
  FROM request q, thread WHERE q.state = 'dispatched'
)
SELECT f.verdict, f.agent, q.request_id AS written FROM facts f LEFT JOIN request q ON true
"""  # noqa: S608  # constants only

FIND_BY_KEY: Final = """
SELECT q.request_id, q.thread_id, q.body_sha256, t.deleted_at IS NOT NULL AS deleted
FROM requests q JOIN threads t USING (thread_id)
WHERE q.uid = $1 AND q.idempotency_key = $2
"""

GET_REQUEST: Final = REQUESTS + "WHERE q.request_id = $1"


@dataclass(frozen=True, slots=True)
class Limits:
    """How many requests and runs may wait; figures of budget.toml [limits]."""

    pending_per_user: int
    pending_total: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What intake made of a submission: the row of the request, whether it had been seen, whether a run is new."""

    request: Any
    replayed: bool
    dispatched: bool


async def take_in(
    database: Database,
    *,
    uid: str,
    thread_id: UUID,
    request_id: UUID,
    run_id: UUID,
    idempotency_key: str | None,
    submission: Submission,
    traceparent: str,
    limits: Limits,
) -> Taken:
    """Commit a submission and return its request.

    Raises NotFound, FailedPrecondition (agent not loaded, interrupted, busy), AlreadyExists (key with another body) or
    ResourceExhausted.
    """
    async with database.connection() as connection:
        async with connection.transaction():
            locked: bool | None = await connection.fetchval(LOCK_THREAD, thread_id, uid)
            outcome = await connection.fetchrow(
                INTAKE,
                thread_id,
                uid,
                request_id,
                run_id,
                submission.multitask_strategy,
                idempotency_key,
                submission.body_sha256,
                submission.input,
                submission.config,
                submission.context,
                list(submission.stream_modes),
                submission.stream_subgraphs,
                submission.durability,
                submission.metadata,
                traceparent,
                [message.message_id for message in submission.messages],
                [orjson.dumps(message.content).decode() for message in submission.messages],
                [message.name for message in submission.messages],
                limits.pending_per_user,
                limits.pending_total,
                locked is True,
            )
        verdict: str = outcome["verdict"]
        # The projection is read behind the commit: the thread's lock is held for two statements only.
        if outcome["written"] is not None:
            row = await connection.fetchrow(GET_REQUEST, outcome["written"])
            return Taken(row, replayed=False, dispatched=verdict == "dispatch")
        if verdict in ("replay", "dispatch", "queue") and idempotency_key is not None:
            # Not only `replay`: a racing duplicate has committed after our snapshot.
            first = await connection.fetchrow(FIND_BY_KEY, uid, idempotency_key)
            if first["body_sha256"] != submission.body_sha256:
                raise errors.key_reused(idempotency_key)
            if first["deleted"]:
                raise errors.thread_deleted(first["thread_id"])
            row = await connection.fetchrow(GET_REQUEST, first["request_id"])
            return Taken(row, replayed=True, dispatched=False)
    if verdict == "agent_gone":
        raise errors.agent_not_loaded(outcome["agent"], await loaded_names(database))
    raise _refusal(verdict, thread_id=thread_id, limits=limits)


def _refusal(verdict: str, *, thread_id: UUID, limits: Limits) -> Exception:
    match verdict:
        case "missing":
            return errors.not_found("thread", thread_id)
        case "interrupted":
            return errors.thread_interrupted(thread_id)
        case "busy":
            return errors.thread_busy(thread_id)
        case "user_limit":
            return errors.pending_limit(scope="user", limit=limits.pending_per_user)
        case "total_limit":
            return errors.pending_limit(scope="total", limit=limits.pending_total)
    raise AssertionError(f"intake wrote nothing for verdict {verdict}")
