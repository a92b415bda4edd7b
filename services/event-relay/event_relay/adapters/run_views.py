"""What the relay may know of runs: run-worker's three views, as role relay. Nothing is held open between statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import asyncpg
from headrace_contract.projection import EventId
from headrace_kit.errors import Unavailable
from headrace_kit.postgres import Database

from event_relay.domain.outcome import Outcome

OWNER = "run-worker"
SCHEMA_VERSION = 2
"""The version of run-worker's schema that this code reads; the next one works too."""

# `since` uses the one format of times; the queue event is made here so that it compares and travels as bytes.
_COLUMNS = """
  o.run_id, o.state, o.deleted, o.terminal, o.runtime_cleanup_pending AS fenced, o.settled_seconds,
  o.result_event_id, o.end_event_id, o.result::text AS result,
  CASE WHEN o.wait_reason IS NOT NULL AND NOT o.terminal THEN (jsonb_build_object(
    'position', o.position, 'wait_reason', o.wait_reason, 'since', utc_json(o.wait_since))
    || jsonb_strip_nulls(jsonb_build_object('run_id', o.wait_run_id)))::text END AS queue
"""
_OPEN = f"""
SELECT {_COLUMNS} FROM run_visibility v JOIN run_outcome o ON o.run_id = v.run_id WHERE v.run_id = $1 AND v.uid = $2
"""  # noqa: S608  # _COLUMNS is the constant above
_OUTCOMES = f"SELECT {_COLUMNS} FROM run_outcome o WHERE o.run_id = ANY($1::uuid[])"  # noqa: S608  # as above
_SNAPSHOT = """
SELECT jsonb_build_object(
  'messages', coalesce((SELECT jsonb_agg(m.message ORDER BY m.seq) FROM run_messages m WHERE m.run_id = $1), '[]'),
  'interrupts', coalesce((SELECT o.result -> 'interrupts' FROM run_outcome o WHERE o.run_id = $1), '[]'))::text
"""


def _outcome(row: Any) -> Outcome:
    return Outcome(
        state=row["state"],
        deleted=row["deleted"],
        terminal=row["terminal"],
        fenced=row["fenced"],
        settled_seconds=row["settled_seconds"],
        result_id=EventId.parse(row["result_event_id"]) if row["result_event_id"] else None,
        end_id=EventId.parse(row["end_event_id"]) if row["end_event_id"] else None,
        result=row["result"].encode() if row["result"] is not None else None,
        queue=row["queue"].encode() if row["queue"] is not None else None,
    )


@contextmanager
def _asking() -> Iterator[None]:
    # What PostgreSQL refuses beside what the kit knows (a role that is being made, a view that is being replaced) is an
    # absence to viewers, not an end.
    try:
        yield
    except asyncpg.PostgresError as error:
        raise Unavailable(
            f"PostgreSQL refuses ({type(error).__name__})", reason="POSTGRES_UNAVAILABLE", retry_after_seconds=1.0
        ) from error


class RunViews:
    """The Runs port."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, run_id: UUID, uid: str) -> Outcome | None:
        """See Runs: access and first probe in one statement."""
        with _asking():
            row = await self._database.fetchrow(_OPEN, run_id, uid)
        return _outcome(row) if row is not None else None

    async def outcomes(self, run_ids: Sequence[UUID]) -> dict[UUID, Outcome]:
        """See Runs: one statement, however many."""
        with _asking():
            rows = await self._database.fetch(_OUTCOMES, list(run_ids))
        return {UUID(str(row["run_id"])): _outcome(row) for row in rows}

    async def snapshot(self, run_id: UUID) -> bytes:
        """See Runs."""
        with _asking():
            return str(await self._database.fetchval(_SNAPSHOT, run_id)).encode()

    async def check_schema(self) -> None:
        """Check that the views are those that this code reads.

        Raises FailedPrecondition when they are not (also before the first migration), Unavailable when PostgreSQL, the
        database or the role is not there yet.
        """
        await self._database.require_schema(OWNER, code_version=SCHEMA_VERSION)
