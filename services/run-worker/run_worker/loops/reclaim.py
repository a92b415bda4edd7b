"""Runs without a live owner: those of an executor that was seen to exit at once, the rest by a sweep each second."""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import UUID

import structlog
from headrace_kit.postgres import DATABASE_ERRORS, Database

from run_worker.adapters.aftermath import Aftermath
from run_worker.adapters.executors import why
from run_worker.adapters.reclaims import (
    FaultPolicy,
    abandon_lost,
    forgotten_executors,
    reclaim_executor,
    sweep_expired,
    sweep_pending,
)
from run_worker.loops.contact import Contact

RETRY_SECONDS: Final = 0.5
"""After PostgreSQL did not answer a reclaim: the runs' users wait."""
SWEEP_SECONDS: Final = 1.0
"""What no exit announced is found this late."""

log = structlog.get_logger("run_worker.reclaim")


class Reclaim:
    """Reclaims the runs of exited executors until PostgreSQL has confirmed each."""

    def __init__(self, *, database: Database, aftermath: Aftermath, policy: FaultPolicy, contact: Contact) -> None:
        self._database = database
        self._aftermath = aftermath
        self._policy = policy
        self._contact = contact
        self._gone: dict[UUID, str] = {}
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()

    def exited(self, executor_id: UUID, reason: str) -> None:
        """An executor's process is gone, by our own eyes; `reason` is kept with its row."""
        self._gone[executor_id] = reason
        self._some.set()
        self._none.clear()

    async def settled(self) -> None:
        """Wait until every exit that was told has been dealt with; the caller sets the bound."""
        await self._none.wait()

    async def run(self) -> None:
        """Reclaim as exits come, until cancelled."""
        while True:
            if not self._gone:
                self._none.set()
                self._some.clear()
                await self._some.wait()
            for executor_id, reason in list(self._gone.items()):
                try:
                    due = await reclaim_executor(
                        self._database,
                        executor_id=executor_id,
                        reason=reason,
                        policy=self._policy,
                        tell=self._aftermath.ended,
                    )
                except DATABASE_ERRORS as error:
                    log.warning("reclaim waits", executor_id=str(executor_id), error=why(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                del self._gone[executor_id]
                log.info("executor reclaimed", executor_id=str(executor_id), reason=reason, runs_given_back=len(due))
                self._aftermath.due_in(due)

    async def sweep(self) -> None:
        """Each second, end or reclaim what lost its owner in a way that nobody saw, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await sweep_pending(self._database, policy=self._policy, tell=self._aftermath.ended)
                for executor_id in await forgotten_executors(self._database):
                    self.exited(executor_id, "exit known before")
                if self._contact.settled:
                    await sweep_expired(self._database, policy=self._policy, tell=self._aftermath.ended)
                    for executor_id in await abandon_lost(self._database):
                        log.warning("executor lost", executor_id=str(executor_id))
            except DATABASE_ERRORS as error:
                log.warning("sweep skipped", error=why(error))
