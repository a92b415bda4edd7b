"""Waiting for ends: one statement each 100 ms for all waiters of the process, and none while nobody waits."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final
from uuid import UUID

import structlog
from headrace_kit.postgres import DATABASE_ERRORS, Database

from run_worker.adapters.executors import why
from run_worker.adapters.runs import ended_among

POLL_SECONDS: Final = 0.1
"""A waiter learns of an end this late at most; one statement by primary key, whoever waits."""
RETRY_SECONDS: Final = 1.0
"""After PostgreSQL did not answer."""

log = structlog.get_logger("run_worker.waits")


class RunWaits:
    """Waiters by run. `run` is the owned loop; `wait` is called by handlers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiters: defaultdict[UUID, set[asyncio.Future[bool]]] = defaultdict(set)
        self._some = asyncio.Event()
        self._closed = False

    async def wait(self, run_id: UUID, *, seconds: float) -> bool:
        """Return True when the run is terminal, False when `seconds` have passed or the process is stopping."""
        if self._closed or seconds <= 0:
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[run_id].add(waiter)
        self._some.set()
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            return False
        finally:
            waiters = self._waiters[run_id]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[run_id]

    def close(self) -> None:
        """Answer every waiter now: the process is stopping and clients ask another one."""
        self._closed = True
        for run_id in list(self._waiters):
            self._answer(run_id, ended=False)

    async def run(self) -> None:
        """Poll while somebody waits, until cancelled."""
        while True:
            if not self._waiters:
                self._some.clear()
                await self._some.wait()
            try:
                for run_id in await ended_among(self._database, list(self._waiters)):
                    self._answer(run_id, ended=True)
            except DATABASE_ERRORS as error:
                log.warning("waits not polled", error=why(error))
                await asyncio.sleep(RETRY_SECONDS)
            await asyncio.sleep(POLL_SECONDS)

    def _answer(self, run_id: UUID, *, ended: bool) -> None:
        for waiter in self._waiters.get(run_id, ()):
            if not waiter.done():
                waiter.set_result(ended)
