"""The rows of executors, as control sees them: who can claim, who exited, whose lease ran out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from headrace_kit.postgres import Database

ROSTER: Final = """
SELECT e.executor_id, e.control_id, e.address, e.slots, e.pid,
  e.lease_expires_at > now() AS fresh, e.draining_at IS NOT NULL AS draining,
  (SELECT count(*) FROM runs r WHERE r.lease_owner = e.executor_id AND r.state = 'running') AS held
FROM executors e
WHERE e.exited_at IS NULL
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
    """Return every executor that has not been seen to exit, of this control and of lost ones."""
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
        for row in await database.fetch(ROSTER)
    ]


async def mark_exited(connection: Any, *, executor_id: UUID, reason: str) -> bool:
    """Record that an executor's process is gone; False when that was known or it never registered."""
    return await connection.fetchval(MARK_EXITED, executor_id, reason) is not None


async def executors_of(database: Database, *, control_id: UUID) -> Sequence[UUID]:
    """Return the executors of a control that nobody has marked as exited."""
    return [row["executor_id"] for row in await database.fetch(OF_CONTROL, control_id)]
