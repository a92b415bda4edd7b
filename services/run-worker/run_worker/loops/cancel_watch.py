"""Watches all runs of the executor together: cancels, lost leases, orphans and time limits.

Invariant: the Redis key and the hint only make the durable check come earlier; PostgreSQL's word alone cancels a run.
One MGET per 200 ms and one statement per second, however many runs there are, and nothing while there are none.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final
from uuid import UUID

import structlog
from headrace_kit.errors import ServiceError
from headrace_kit.redis import AWAY_ERRORS

from run_worker.adapters.leases import hand_back, owned_runs, watch
from run_worker.adapters.stream import ProjectionWriter
from run_worker.loops.attempt import ExecutorParts, Stop
from run_worker.loops.claim import Claimer
from run_worker.loops.table import RunTable

ORPHAN_SECONDS: Final = 5.0
"""How often the runs that PostgreSQL says are ours are compared with those that we hold."""

log = structlog.get_logger("headrace.watch")


class CancelWatch:
    """The watching loops of one executor."""

    def __init__(
        self,
        parts: ExecutorParts,
        table: RunTable,
        writer: ProjectionWriter,
        *,
        redis_seconds: float,
        postgres_seconds: float,
    ) -> None:
        self._parts = parts
        self._table = table
        self._writer = writer
        self._redis_seconds = redis_seconds
        self._postgres_seconds = postgres_seconds
        self._redis_away = False

    async def run(self) -> None:
        """Watch until cancelled."""
        checked_at = 0.0
        while True:
            await asyncio.sleep(self._redis_seconds)
            attempts = self._table.attempts()
            if not attempts:
                continue
            if not self._parts.lease.may_stream():
                log.error("the lease is over and PostgreSQL stayed away; runs are let go")
                self._table.stop_all(Stop.LOST)
                continue
            now = time.monotonic()
            for attempt in attempts:
                attempt.check_limits(now)
            hinted = await self._hinted([str(attempt.run_row.run_id) for attempt in attempts])
            if hinted or now - checked_at >= self._postgres_seconds:
                checked_at = now
                await self.check([attempt.run_row.run_id for attempt in attempts])

    async def _hinted(self, run_ids: list[str]) -> bool:
        try:
            keys = await self._writer.cancel_keys(run_ids)
        except AWAY_ERRORS as error:
            if not self._redis_away:
                log.warning("cancel keys cannot be read; PostgreSQL alone tells cancels", error=type(error).__name__)
            self._redis_away = True
            return False
        self._redis_away = False
        held = [self._table.get(UUID(run_id)) for run_id in keys]
        return any(attempt is not None and attempt.signal.reason is not Stop.CANCEL for attempt in held)

    async def check(self, run_ids: list[UUID]) -> None:
        """Ask PostgreSQL once about all these runs, and stop those that were cancelled or are not ours any more."""
        held = {run_id: attempt for run_id in run_ids if (attempt := self._table.get(run_id)) is not None}
        try:
            rows = await watch(self._parts.database, run_ids=list(held))
        except ServiceError as error:
            log.warning("durable check failed", reason=error.reason)
            return
        for row in rows:
            attempt = held[row.run_id]
            if (row.attempt, row.owner, row.running) == (
                attempt.run_row.attempt,
                self._parts.executor_id,
                True,
            ):
                if row.cancel:
                    attempt.signal.set(Stop.CANCEL)
            elif attempt.holds_slot:
                attempt.signal.set(Stop.LOST)

    async def sweep_orphans(self, claimer: Claimer) -> None:
        """Hand back runs that are ours by the database and held by no task (a claim whose answer was lost)."""
        suspects: dict[UUID, int] = {}
        while True:
            await asyncio.sleep(ORPHAN_SECONDS)
            if claimer.in_flight:
                continue
            try:
                owned = await owned_runs(self._parts.database, owner=self._parts.executor_id)
                if claimer.in_flight:
                    continue
                orphans = {run_id: attempt for run_id, attempt in owned if self._table.get(run_id) is None}
                # Twice in a row: a task that is just ending still has its slot's row for a moment.
                for run_id, attempt in orphans.items():
                    if suspects.get(run_id) == attempt:
                        log.error("orphan handed back", run_id=str(run_id), attempt=attempt)
                        await hand_back(
                            self._parts.database, run_id=run_id, attempt=attempt, owner=self._parts.executor_id
                        )
                suspects = orphans
            except ServiceError as error:
                log.warning("orphan sweep failed", reason=error.reason)
