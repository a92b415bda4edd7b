"""Claims runs: at a wake, when a slot came free, and by a poll of about a second that needs no hint.

Invariant: nothing is claimed with a lease that is not alive, nor once the executor drains.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

import structlog
from headrace_kit.errors import ServiceError

from run_worker.adapters.claims import claim
from run_worker.loops.attempt import ExecutorParts
from run_worker.loops.table import RunTable

JITTER: Final = 0.2
"""Of the poll interval, so that executors do not poll in step."""
REST_SECONDS: Final = 0.05
"""When a share was left to other executors: how long until this one looks whether they took it."""

log = structlog.get_logger("headrace.claim")


class Claimer:
    """The claiming loop of one executor."""

    def __init__(self, table: RunTable, *, poll_seconds: float, max_faults: int) -> None:
        self.draining = False
        self.in_flight = False
        """True while a claim's answer is on its way: a run may be owned and not yet in the table."""
        self._table = table
        self._poll_seconds = poll_seconds
        self._max_faults = max_faults
        self._wakeup = asyncio.Event()
        self._more = False

    def wake(self) -> None:
        """Claim at once; callable from handlers."""
        self._wakeup.set()

    def slot_freed(self, dispatched: bool) -> None:
        """Claim at once if this end made another run claimable, or more were left waiting."""
        if dispatched or self._more:
            self._wakeup.set()

    async def run(self, parts: ExecutorParts) -> None:
        """Claim until cancelled."""
        while True:
            pause = self._poll_seconds * random.uniform(1 - JITTER, 1 + JITTER)
            free = self._table.free
            if free > 0 and not self.draining and parts.lease.alive():
                taken, left = await self._claim(parts, free)
                self._more = left > 0
                if taken and left and self._table.free > 0:
                    pause = REST_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._wakeup.wait()
            except TimeoutError:
                continue
            self._wakeup.clear()

    async def _claim(self, parts: ExecutorParts, free: int) -> tuple[int, int]:
        self.in_flight = True
        try:
            runs, left = await claim(
                parts.database,
                executor_id=parts.executor_id,
                free=free,
                take_over=parts.lease.may_take_over(),
                max_faults=self._max_faults,
            )
            self._table.start(parts, runs)
        except ServiceError as error:
            log.warning("no claim", reason=error.reason)
            return 0, 0
        finally:
            self.in_flight = False
        return len(runs), left
