"""The rows of executors, as control sees them: who can claim, who exited, whose lease ran out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from headrace_kit.errors import ServiceError, Unavailable
from headrace_kit.postgres import Database

# One row at least: it says whether leases can be renewed in this database at all.
ROSTER: Final = """
SELECT w.read_only, e.executor_id, e.control_id, e.address, e.slots, e.pid,
  e.lease_expires_at > now() AS fresh, e.draining_at IS NOT NULL AS draining,
  (SELECT count(*) FROM runs r WHERE r.lease_owner = e.executor_id AND r.state = 'running') AS held
FROM (SELECT current_setting('transaction_read_only')::bool OR pg_is_in_recovery() AS read_only) w
  LEFT JOIN executors e ON e.exited_at IS NULL
"""

MARK_EXITED: Final = """
UPDATE executors SET exited_at = clock_timestamp(), exit_reason = $2 WHERE executor_id = $1 AND exited_at IS NULL
RETURNING executor_id
"""

OF_CONTROL: Final = "SELECT executor_id FROM executors WHERE control_id = $1 AND exited_at IS NULL"


@dataclass(frozen=True, slots=True)
class ExecutorRow:
    """An executor that has not been seen to exit."""

    executor_id: UUID
    control_id: UUID
    address: str
    pid: int
    slots: int
    held: int
    """Runs that it owns."""
    fresh: bool
    """Its lease has not run out."""
    draining: bool

    @property
    def can_claim(self) -> bool:
        """Whether it takes runs now."""
        return self.fresh and not self.draining


async def roster(database: Database) -> Sequence[ExecutorRow]:
    """Return every executor that has not been seen to exit, of this control and of lost ones.

    Raises Unavailable when the database takes no writes: a lease may then have run out because it could not be renewed.
    """
    rows = await database.fetch(ROSTER)
    if rows[0]["read_only"]:
        database.renew_connections()
        raise Unavailable("PostgreSQL is read-only", reason="POSTGRES_READ_ONLY", retry_after_seconds=1.0)
    return [
        ExecutorRow(
            executor_id=row["executor_id"],
            control_id=row["control_id"],
            address=row["address"],
            pid=row["pid"],
            slots=row["slots"],
            held=row["held"],
            fresh=row["fresh"],
            draining=row["draining"],
        )
        for row in rows
        if row["executor_id"] is not None
    ]


async def mark_exited(connection: Any, *, executor_id: UUID, reason: str) -> bool:
    """Record that an executor's process is gone; False when that was known or it never registered."""
    return await connection.fetchval(MARK_EXITED, executor_id, reason) is not None


async def executors_of(database: Database, *, control_id: UUID) -> Sequence[UUID]:
    """Return the executors of a control that nobody has marked as exited."""
    return [row["executor_id"] for row in await database.fetch(OF_CONTROL, control_id)]


def why(error: BaseException) -> str:
    """Return one word for the log about a DATABASE_ERROR: its reason, or its type."""
    return error.reason if isinstance(error, ServiceError) else type(error).__name__
