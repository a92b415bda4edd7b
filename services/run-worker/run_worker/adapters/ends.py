"""The end of a run: one transaction with messages, output, attempt, thread state, next dispatch and fence.

Invariants: lock order is thread, then run; every write is guarded by (run_id, attempt, lease_owner); durable cancel
wins over completed and interrupted; a loser of a guard returns None and has changed nothing.

Statements in an end: lock, end, and a third (dispatch) only when a completed run has a queue behind it.

    ending        thread becomes                  queue
    completed     busy with the head, else idle   the head is dispatched in this transaction
    failed        paused                          waits for continue, or a new message when empty
    cancelled     paused                          the same
    interrupted   interrupted                     new messages are refused until the answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from uuid import UUID

import asyncpg
from headrace_kit.postgres import Database

from run_worker.domain.encoding import json_text
from run_worker.domain.transcript import TranscriptMessage

EndState = Literal["completed", "failed", "cancelled", "interrupted"]
AttemptOutcome = Literal["completed", "failed", "cancelled", "interrupted", "handed_back", "crashed", "lease_expired"]

UNOWNED_RESULT_N: Final = 3
"""Control writes metadata, snapshot, result, end: 1 to 4 of the attempt that it made by ending the run."""


class EndRefused(Exception):
    """PostgreSQL would not take this ending (its text or values); the cause says why. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends and what it leaves. `error` is {type, message, details}; completed needs one of the outputs."""

    state: EndState
    error: Mapping[str, Any] | None = None
    output_message_id: str | None = None
    output_checkpoint_id: str | None = None
    interrupts: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[TranscriptMessage] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """What was committed: all that whoever tells the end needs."""

    run_id: UUID
    thread_id: UUID
    request_id: UUID
    agent: str
    attempt: int
    state: EndState
    result_event_id: str
    end_event_id: str
    result: bytes
    """Data of the `result` event, JSON."""
    fenced: bool
    """True: `end` may not be told before the fence is clear."""
    dispatched_run_id: UUID | None
    """The next run of the thread, made in the same transaction."""


LOCK_THREAD = """
SELECT t.thread_id FROM threads t WHERE t.thread_id = (SELECT r.thread_id FROM runs r WHERE r.run_id = $1)
FOR UPDATE OF t
"""

# The guard differs between an owner's end and an end without an owner; all that follows is the same.
_END_TEMPLATE = """
WITH ended AS (
  UPDATE runs SET state = $2, attempt = {attempt}, lease_owner = NULL, faults = {faults},
    cancel_requested_at = CASE WHEN $2 = 'cancelled' THEN coalesce(cancel_requested_at, now())
                               ELSE cancel_requested_at END,
    error = $3::jsonb, output_message_id = $4, output_checkpoint_id = $5, interrupts = $6::jsonb, usage = $7::jsonb,
    result_event_id = $8, end_event_id = $9,
    -- Only a root run's end sets the fence; a child's never does.
    runtime_cleanup_pending = runtime_cleanup_pending OR (runtime_touched_at IS NOT NULL AND run_id = root_run_id),
    finished_at = greatest(clock_timestamp(), created_at, started_at, prepared_at, first_output_at)
  WHERE run_id = $1 AND {guard}
  RETURNING run_id, thread_id, request_id, agent, attempt, state, result_event_id, end_event_id,
    runtime_cleanup_pending AS fenced, run_result_json(runs)::text AS result
), transcript AS (
  INSERT INTO messages
    (thread_id, message_id, run_id, request_id, role, content, reasoning, tool_calls, tool_call_id, name, partial)
  SELECT e.thread_id, m ->> 'message_id', e.run_id, e.request_id, m ->> 'role', m -> 'content', m ->> 'reasoning',
    m -> 'tool_calls', m ->> 'tool_call_id', m ->> 'name', (m ->> 'partial')::boolean
  FROM ended e, jsonb_array_elements($10::jsonb) WITH ORDINALITY AS given (m, place)
  ORDER BY place
  ON CONFLICT (thread_id, message_id) DO UPDATE SET content = excluded.content, reasoning = excluded.reasoning,
    tool_calls = excluded.tool_calls, tool_call_id = excluded.tool_call_id, name = excluded.name,
    partial = excluded.partial
  WHERE messages.run_id = excluded.run_id
), closed AS (
  UPDATE attempts a SET finished_at = clock_timestamp(), outcome = {outcome}, error = $3::jsonb
  FROM ended e WHERE a.run_id = e.run_id AND a.attempt = {closing} AND a.finished_at IS NULL
), thread AS (
  UPDATE threads t SET active_run_id = NULL, updated_at = now(),
    state = CASE e.state WHEN 'completed' THEN 'idle' WHEN 'interrupted' THEN 'interrupted' ELSE 'paused' END
  FROM ended e WHERE t.thread_id = e.thread_id AND t.active_run_id = e.run_id
)
SELECT e.*, e.state = 'completed'
  AND EXISTS (SELECT FROM requests q WHERE q.thread_id = e.thread_id AND q.state = 'queued') AS next_waits
FROM ended e
"""

END_OWNED = _END_TEMPLATE.format(
    attempt="attempt",
    faults="faults",
    closing="$11",
    outcome="$2",
    guard="""attempt = $11 AND lease_owner = $12 AND state = 'running'
    AND CASE WHEN $2 = 'cancelled' THEN cancel_requested_at IS NOT NULL
             WHEN $2 = 'failed' THEN true
             ELSE cancel_requested_at IS NULL END""",
)

END_UNOWNED = _END_TEMPLATE.format(
    attempt="attempt + 1",
    faults="CASE WHEN $13 THEN least(faults + 1, 3) ELSE faults END",
    closing="$11",
    outcome="$12",
    guard="""attempt = $11 AND $2 IN ('failed', 'cancelled')
    AND (state = 'pending' OR state = 'running' AND EXISTS (
      SELECT FROM executors x WHERE x.executor_id = lease_owner
        AND (x.exited_at IS NOT NULL OR x.lease_expires_at < clock_timestamp())))""",
)

DISPATCH_HEAD = """
WITH taken AS (
  UPDATE requests q SET state = 'dispatched', dispatched_at = clock_timestamp()
  WHERE q.state = 'queued' AND q.request_id = (
    SELECT h.request_id FROM requests h WHERE h.thread_id = $1 AND h.state = 'queued'
    ORDER BY h.created_at, h.seq LIMIT 1)
  RETURNING q.run_id, q.request_id, q.thread_id, q.uid, q.agent
), thread AS (
  UPDATE threads t SET state = 'busy', active_run_id = taken.run_id, latest_run_id = taken.run_id,
    runs_count = t.runs_count + 1, updated_at = now()
  FROM taken WHERE t.thread_id = taken.thread_id
  RETURNING t.runs_count
), moved AS (
  -- The transcript is in the order of runs: a message that waited in the queue comes after what it waited for.
  UPDATE messages m SET seq = DEFAULT FROM taken WHERE m.thread_id = taken.thread_id AND m.run_id = taken.run_id
)
INSERT INTO runs (run_id, request_id, thread_id, uid, agent, ordinal, root_run_id, created_at, not_before)
SELECT k.run_id, k.request_id, k.thread_id, k.uid, k.agent, thread.runs_count, k.run_id,
  clock_timestamp(), clock_timestamp()
FROM taken k, thread
RETURNING run_id
"""

READ_ENDED = """
SELECT run_id, thread_id, request_id, agent, attempt, state, result_event_id, end_event_id,
  runtime_cleanup_pending AS fenced, run_result_json(runs)::text AS result
FROM runs WHERE run_id = $1 AND attempt = $2 AND finished_at IS NOT NULL
"""


async def dispatch_head(connection: Any, *, thread_id: UUID) -> UUID | None:
    """Make the run of the thread's oldest queued request and the thread busy with it; None if nothing is queued.

    Call it inside a transaction that holds the thread's row lock and only while the thread has no active run.
    """
    run_id: UUID | None = await connection.fetchval(DISPATCH_HEAD, thread_id)
    return run_id


async def end_owned(
    connection: Any, *, run_id: UUID, attempt: int, owner: UUID, last_n: int, ending: Ending
) -> Ended | None:
    """End a run as its live owner; `last_n` is the n of its last published event, `result` and `end` follow it.

    Returns None, with nothing changed, when the attempt is not this owner's any more or a durable cancel forbids
    this ending: the caller reads the run again and ends it as cancelled, or stops.
    """
    await connection.fetchval(LOCK_THREAD, run_id)
    ids = (f"{attempt}-{last_n + 1}", f"{attempt}-{last_n + 2}")
    row = await connection.fetchrow(END_OWNED, *_facts(run_id, ending, ids), attempt, owner)
    return await _ended(connection, row)


async def commit_end(
    database: Database, *, run_id: UUID, attempt: int, owner: UUID, last_n: int, ending: Ending
) -> Ended | None:
    """Run `end_owned` in a transaction of its own.

    Raises Unavailable or ResourceExhausted when it is not known whether it was committed (read it back), EndRefused
    when PostgreSQL refuses this very ending.
    """
    try:
        async with database.transaction() as connection:
            return await end_owned(
                connection, run_id=run_id, attempt=attempt, owner=owner, last_n=last_n, ending=ending
            )
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise EndRefused(f"{type(error).__name__}: {error}") from error


async def end_unowned(
    connection: Any,
    *,
    run_id: UUID,
    expected_attempt: int,
    ending: Ending,
    attempt_outcome: AttemptOutcome | None = None,
    count_fault: bool = False,
) -> Ended | None:
    """End a pending run, or a running one whose executor exited or whose lease expired, as failed or cancelled.

    The attempt is bumped, so that a former owner loses every guard; `attempt_outcome` closes its open attempts row
    (the ending's state when not given), and `count_fault` counts its loss as one more fault.
    Returns None, with nothing changed, when the run moved on from `expected_attempt` or has a live owner.
    """
    await connection.fetchval(LOCK_THREAD, run_id)
    new = expected_attempt + 1
    ids = (f"{new}-{UNOWNED_RESULT_N}", f"{new}-{UNOWNED_RESULT_N + 1}")
    outcome = attempt_outcome or ending.state
    row = await connection.fetchrow(END_UNOWNED, *_facts(run_id, ending, ids), expected_attempt, outcome, count_fault)
    return await _ended(connection, row)


async def read_ended(connection: Any, *, run_id: UUID, attempt: int) -> Ended | None:
    """Read back an end whose COMMIT had no answer; None when that attempt did not end the run."""
    row = await connection.fetchrow(READ_ENDED, run_id, attempt)
    return None if row is None else _from_row(row, None)


def _facts(run_id: UUID, ending: Ending, ids: tuple[str, str]) -> tuple[Any, ...]:
    # One row an id: a second one in the same statement would be an error of ON CONFLICT.
    messages = {message.message_id: message for message in ending.messages}
    return (
        run_id,
        ending.state,
        None if ending.error is None else json_text(ending.error),
        ending.output_message_id,
        ending.output_checkpoint_id,
        json_text(list(ending.interrupts)),
        json_text(ending.usage),
        *ids,
        json_text([message.as_json() for message in messages.values()]),
    )


async def _ended(connection: Any, row: Any | None) -> Ended | None:
    if row is None:
        return None
    dispatched = await dispatch_head(connection, thread_id=row["thread_id"]) if row["next_waits"] else None
    return _from_row(row, dispatched)


def _from_row(row: Any, dispatched: UUID | None) -> Ended:
    return Ended(
        run_id=row["run_id"],
        thread_id=row["thread_id"],
        request_id=row["request_id"],
        agent=row["agent"],
        attempt=row["attempt"],
        state=row["state"],
        result_event_id=row["result_event_id"],
        end_event_id=row["end_event_id"],
        result=row["result"].encode(),
        fenced=row["fenced"],
        dispatched_run_id=dispatched,
    )
