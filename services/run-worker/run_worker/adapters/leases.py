"""An executor's row, its lease, and what it gives back. One UPDATE of one row renews the lease of all its runs.

Invariant: a renewal is not guarded by expiry (expiry only permits a takeover); a hand-back is guarded by
(run_id, attempt, lease_owner) and never hides a cancel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
from headrace_kit.errors import Unavailable
from headrace_kit.postgres import AWAY_ERRORS, Database

from run_worker.domain.encoding import json_text

REGISTER = """
INSERT INTO executors (executor_id, control_id, host, pid, address, version, slots, lease_expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, now() + make_interval(secs => $8))
"""

RENEW = """
UPDATE executors SET lease_expires_at = clock_timestamp() + make_interval(secs => $2)
WHERE executor_id = $1 AND exited_at IS NULL RETURNING true
"""

DRAIN = """
UPDATE executors SET draining_at = coalesce(draining_at, now()) WHERE executor_id = $1
"""

HAND_BACK = """
WITH back AS (
  UPDATE runs SET state = 'pending', lease_owner = NULL, faults = faults + CASE WHEN $4 THEN 1 ELSE 0 END,
    not_before = clock_timestamp() + make_interval(secs => $5)
  WHERE run_id = $1 AND attempt = $2 AND lease_owner = $3 AND state = 'running' AND cancel_requested_at IS NULL
  RETURNING run_id, attempt
)
UPDATE attempts a SET finished_at = clock_timestamp(), outcome = 'handed_back', error = $6::jsonb
FROM back WHERE a.run_id = back.run_id AND a.attempt = back.attempt
RETURNING a.run_id
"""

WATCH = """
SELECT run_id, attempt, lease_owner, state, cancel_requested_at IS NOT NULL AS cancel
FROM runs WHERE run_id = ANY($1)
"""

OWNED = "SELECT run_id, attempt FROM runs WHERE lease_owner = $1 AND state = 'running'"

STATEMENT_SECONDS = 5.0
"""Bound of one statement on the lease connection: half a TTL, so that a stuck one still leaves time to try again."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What PostgreSQL says about a run that this executor holds."""

    run_id: UUID
    attempt: int
    owner: UUID | None
    running: bool
    cancel: bool


async def register(
    connection: Any,
    *,
    executor_id: UUID,
    control_id: UUID,
    host: str,
    pid: int,
    address: str,
    version: str,
    slots: int,
    lease_seconds: float,
) -> None:
    """Insert the executor's row; its lease begins."""
    await connection.execute(REGISTER, executor_id, control_id, host, pid, address, version, slots, lease_seconds)


async def mark_draining(database: Database, *, executor_id: UUID) -> None:
    """Say that the executor takes nothing any more."""
    await database.execute(DRAIN, executor_id)


async def hand_back(
    database: Database,
    *,
    run_id: UUID,
    attempt: int,
    owner: UUID,
    fault: bool = False,
    back_off_seconds: float = 0.0,
    error: Mapping[str, Any] | None = None,
) -> bool:
    """Give a run's lease up, so that the next attempt may start; a retryable `fault` counts and waits.

    Return False, with nothing changed, when the run is not this owner's any more or a cancel waits for its end.
    """
    told = None if error is None else json_text(error)
    return await database.fetchval(HAND_BACK, run_id, attempt, owner, fault, back_off_seconds, told) is not None


async def watch(database: Database, *, run_ids: Sequence[UUID]) -> list[Watched]:
    """Return the durable facts of the runs that this executor believes it holds, in one statement."""
    return [
        Watched(
            run_id=row["run_id"],
            attempt=row["attempt"],
            owner=row["lease_owner"],
            running=row["state"] == "running",
            cancel=row["cancel"],
        )
        for row in await database.fetch(WATCH, run_ids)
    ]


async def owned_runs(database: Database, *, owner: UUID) -> list[tuple[UUID, int]]:
    """Return run and attempt of everything that is this executor's by the database."""
    return [(row["run_id"], row["attempt"]) for row in await database.fetch(OWNED, owner)]


class LeaseConnection:
    """The renewal thread's own connection: outside the pool, so that no work can keep a renewal waiting."""

    def __init__(self, *, dsn: str, executor_id: UUID, lease_seconds: float) -> None:
        self._dsn = dsn
        self._executor_id = executor_id
        self._lease_seconds = lease_seconds
        self._connection: Any | None = None

    async def renew(self) -> bool:
        """Renew the lease; False when control has declared this executor dead.

        Raises Unavailable when it could not be done; the next call connects anew.
        """
        try:
            if self._connection is None:
                self._connection = await asyncpg.connect(
                    self._dsn,
                    timeout=STATEMENT_SECONDS,
                    command_timeout=STATEMENT_SECONDS,
                    server_settings={"application_name": "headrace-lease", "timezone": "UTC", "jit": "off"},
                )
            return await self._connection.fetchval(RENEW, self._executor_id, self._lease_seconds) is True
        except (*AWAY_ERRORS, asyncpg.PostgresError) as error:
            self.abort()
            raise Unavailable(
                f"the lease was not renewed ({type(error).__name__})", reason="POSTGRES_UNAVAILABLE"
            ) from error

    def abort(self) -> None:
        """Drop the connection without a word to the server."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
