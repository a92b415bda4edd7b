"""Runs without a live owner: given back to the queue, or ended when nothing else is left.

Safety is `attempt` alone: a former owner that still lives loses every guard, because each statement here either clears
`lease_owner` or bumps `attempt` under the row lock.

    of a run whose executor is gone     becomes
    cancel requested                    cancelled
    its third fault                     failed (faults_exhausted)
    else                                pending, one fault more, not before now + back-off (1 s, then 4 s)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from headrace_kit.postgres import Database

from run_worker.adapters.ends import AttemptOutcome, Ended, Ending, end_unowned
from run_worker.adapters.executors import mark_exited

SWEEP_LIMIT: Final = 100
"""Runs that one sweep ends; the next one follows within a second."""

# Runs only: the thread stays busy with its run, so its row needs no lock.
GIVE_BACK: Final = """
WITH given AS (
  UPDATE runs SET state = 'pending', lease_owner = NULL, faults = faults + 1,
    not_before = clock_timestamp() + make_interval(secs => ($3::float8[])[least(faults + 1, cardinality($3::float8[]))])
  WHERE lease_owner = $1 AND state = 'running' AND cancel_requested_at IS NULL AND faults + 1 < $2
  RETURNING run_id, attempt, not_before
), closed AS (
  UPDATE attempts a SET finished_at = clock_timestamp(), outcome = 'crashed'
  FROM given g WHERE a.run_id = g.run_id AND a.attempt = g.attempt AND a.finished_at IS NULL
)
SELECT run_id, greatest(0, extract(epoch FROM not_before - clock_timestamp()))::float8 AS due_seconds FROM given
"""

LEFT_OVER: Final = """
SELECT run_id, attempt, faults, cancel_requested_at IS NOT NULL AS cancel
FROM runs WHERE lease_owner = $1 AND state = 'running'
"""

# A takeover is for executors; here only what they must not take: cancelled ones, and the third fault.
EXPIRED: Final = """
SELECT r.run_id, r.attempt, r.faults, r.cancel_requested_at IS NOT NULL AS cancel
FROM runs r JOIN executors e ON e.executor_id = r.lease_owner
WHERE r.state = 'running' AND (e.lease_expires_at < clock_timestamp() OR e.exited_at IS NOT NULL)
  AND (r.cancel_requested_at IS NOT NULL OR r.faults + 1 >= $1)
LIMIT $2
"""

PENDING_CANCELLED: Final = """
SELECT run_id, attempt, faults, true AS cancel FROM runs
WHERE state = 'pending' AND cancel_requested_at IS NOT NULL LIMIT $1
"""

FORGOTTEN: Final = """
SELECT DISTINCT e.executor_id FROM executors e JOIN runs r ON r.lease_owner = e.executor_id AND r.state = 'running'
WHERE e.exited_at IS NOT NULL
"""

# Its host is lost. Should it come back, its renewal finds exited_at set, and it stops and starts anew.
ABANDON: Final = """
UPDATE executors SET exited_at = clock_timestamp(), exit_reason = 'its lease ran out long ago'
WHERE exited_at IS NULL AND lease_expires_at < clock_timestamp() - make_interval(secs => $1)
RETURNING executor_id
"""

ABANDON_SECONDS: Final = 600.0
"""Far longer than any outage that executors sit out (60 s), so that only rows that nobody renews are closed."""


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """Figures of budget.toml [runs]."""

    max_faults: int
    back_off_seconds: Sequence[float]


Tell = Callable[[Ended], None]
"""Publishes an end; called right after its commit, so that a later error in the same batch loses none."""


async def reclaim_executor(
    database: Database, *, executor_id: UUID, reason: str, policy: FaultPolicy, tell: Tell
) -> Sequence[float]:
    """Take back every run of an executor whose exit was seen. Safe to repeat.

    Returns after how many seconds the runs that were given back may be claimed.
    """
    async with database.transaction() as connection:
        await mark_exited(connection, executor_id=executor_id, reason=reason)
        given = await connection.fetch(GIVE_BACK, executor_id, policy.max_faults, list(policy.back_off_seconds))
    left = await database.fetch(LEFT_OVER, executor_id)
    await _end_all(database, left, policy=policy, lost="crashed", tell=tell)
    return [row["due_seconds"] for row in given]


async def sweep_expired(database: Database, *, policy: FaultPolicy, tell: Tell) -> None:
    """End what lost its owner and may not be taken over: cancel requested, or faults used up."""
    rows = await database.fetch(EXPIRED, policy.max_faults, SWEEP_LIMIT)
    await _end_all(database, rows, policy=policy, lost="lease_expired", tell=tell)


async def sweep_pending(database: Database, *, policy: FaultPolicy, tell: Tell) -> None:
    """End pending runs with a cancel that reached them while they were handed back."""
    rows = await database.fetch(PENDING_CANCELLED, SWEEP_LIMIT)
    await _end_all(database, rows, policy=policy, lost=None, tell=tell)


async def forgotten_executors(database: Database) -> Sequence[UUID]:
    """Return executors that are known to have exited and still own runs: a control died between the two."""
    return [row["executor_id"] for row in await database.fetch(FORGOTTEN)]


async def abandon_lost(database: Database) -> Sequence[UUID]:
    """Close the rows of executors that nobody saw exit and that nobody renews; return them."""
    return [row["executor_id"] for row in await database.fetch(ABANDON, ABANDON_SECONDS)]


async def _end_all(
    database: Database, rows: Sequence[Any], *, policy: FaultPolicy, lost: AttemptOutcome | None, tell: Tell
) -> None:
    for row in rows:
        if row["cancel"]:
            ending, counts = Ending(state="cancelled"), False
        elif row["faults"] + 1 >= policy.max_faults:
            ending, counts = _exhausted(row, policy), True
        else:
            continue
        async with database.transaction() as connection:
            end = await end_unowned(
                connection,
                run_id=row["run_id"],
                expected_attempt=row["attempt"],
                ending=ending,
                attempt_outcome=lost,
                count_fault=counts,
            )
        if end is not None:
            tell(end)


def _exhausted(row: Any, policy: FaultPolicy) -> Ending:
    return Ending(
        state="failed",
        error={
            "type": "faults_exhausted",
            "message": f"the run lost its executor or its model {policy.max_faults} times",
            "details": {"faults": row["faults"] + 1, "max_faults": policy.max_faults, "attempt": row["attempt"]},
        },
    )
