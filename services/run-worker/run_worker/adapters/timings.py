"""The two observed times of a run, written once, by its live owner only, in short statements of their own.

Invariant: a time is the database's clock minus the observation's age, never before the time that it follows, and
never written to a run that has ended. At most two statements a run.
"""

from __future__ import annotations

from uuid import UUID

from headrace_kit.postgres import Database

WRITE_PREPARED = """
UPDATE runs SET prepared_at = greatest(clock_timestamp() - make_interval(secs => $4), started_at)
WHERE run_id = $1 AND attempt = $2 AND lease_owner = $3 AND state = 'running'
  AND prepared_at IS NULL AND finished_at IS NULL RETURNING true
"""

WRITE_FIRST_OUTPUT = """
UPDATE runs SET first_output_at = greatest(clock_timestamp() - make_interval(secs => $4), started_at, prepared_at)
WHERE run_id = $1 AND attempt = $2 AND lease_owner = $3 AND state = 'running'
  AND first_output_at IS NULL AND finished_at IS NULL RETURNING true
"""


async def write_prepared(database: Database, *, run_id: UUID, attempt: int, owner: UUID, age_seconds: float) -> bool:
    """Record that execution entered the graph `age_seconds` ago; False when it was recorded before or may not be."""
    return await database.fetchval(WRITE_PREPARED, run_id, attempt, owner, age_seconds) is True


async def write_first_output(
    database: Database, *, run_id: UUID, attempt: int, owner: UUID, age_seconds: float
) -> bool:
    """Record that the first output was seen `age_seconds` ago; False when it was recorded before or may not be."""
    return await database.fetchval(WRITE_FIRST_OUTPUT, run_id, attempt, owner, age_seconds) is True
