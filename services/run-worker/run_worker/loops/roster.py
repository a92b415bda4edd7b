"""Who can claim, once a second: readiness, where to send hints, and executors that hang."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
from headrace_kit.postgres import DATABASE_ERRORS, Database

from run_worker.adapters.executor_client import ExecutorHints
from run_worker.adapters.executors import ExecutorRow, roster, why
from run_worker.loops.contact import Contact

PERIOD_SECONDS: Final = 1.0
UNREADY_PERIOD_SECONDS: Final = 0.2
"""While nothing can claim: whoever waits for us should not wait for the next second too."""
PROBE_SECONDS: Final = 2.0
"""A database that answers later cannot do the job now."""

log = structlog.get_logger("run_worker.roster")


class Roster:
    """Reads the executors' rows and tells whoever needs them."""

    def __init__(
        self,
        *,
        database: Database,
        hints: ExecutorHints,
        contact: Contact,
        set_serving: Callable[[bool], Awaitable[None]],
        judge: Callable[[Sequence[ExecutorRow]], None],
    ) -> None:
        """`judge` gets the rows only while leases may be judged (see Contact)."""
        self._database = database
        self._hints = hints
        self._contact = contact
        self._set_serving = set_serving
        self._judge = judge
        self._serving = False
        self._stopping = False

    async def run(self) -> None:
        """Refresh each second, until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(PERIOD_SECONDS if self._serving else UNREADY_PERIOD_SECONDS)

    async def refresh(self) -> None:
        """Read the rows once: ready means that PostgreSQL takes writes and at least one executor can claim."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                rows = await roster(self._database)
        except DATABASE_ERRORS as error:
            self._contact.failed()
            await self._serve(False, "POSTGRES_SLOW" if isinstance(error, TimeoutError) else why(error))
            return
        self._contact.answered()
        self._hints.update(rows)
        await self._serve(any(row.can_claim for row in rows), "NO_EXECUTOR")
        if self._contact.settled:
            self._judge(rows)

    async def stop(self) -> None:
        """Not ready from now on, whatever the rows say: the process is stopping."""
        self._stopping = True
        await self._serve(False, "STOPPING")

    async def _serve(self, serving: bool, why_not: str) -> None:
        serving = serving and not self._stopping
        if serving != self._serving:
            self._serving = serving
            log.info("readiness", serving=serving, **({} if serving else {"reason": why_not}))
            await self._set_serving(serving)
