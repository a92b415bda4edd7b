"""Asks PostgreSQL about all followed runs: the end and visibility of each every 5 s, waiting runs every second.

One statement for all that are due. It is what tells the end of a run whose stream never will, a deleted thread, and
where a run waits.
"""

from __future__ import annotations

import asyncio
import random

import structlog
from headrace_kit.errors import ResourceExhausted, Unavailable

from event_relay.domain.book import TailBook
from event_relay.domain.outcome import DELETED
from event_relay.domain.ports import Runs

SHARE_SECONDS = 0.05
"""Runs that are due within this are asked together."""
RETRY_SECONDS = (0.5, 1.5)
"""Between tries while PostgreSQL is away."""

log = structlog.get_logger("event_relay.watch")


class Watch:
    """The loop; see the module."""

    def __init__(self, book: TailBook, runs: Runs, *, probe_seconds: float) -> None:
        self._book = book
        self._runs = runs
        self._probe_seconds = probe_seconds

    async def run(self) -> None:
        """Ask until cancelled."""
        book = self._book
        while True:
            book.probes_changed.clear()
            horizon = book.clock() + SHARE_SECONDS
            due = [tail for tail in book.tails.values() if tail.probe_due <= horizon]
            if due:
                try:
                    outcomes = await self._runs.outcomes([tail.run_id for tail in due])
                except (Unavailable, ResourceExhausted) as error:
                    await self._away(error.reason)
                    continue
                if book.postgres.recovered():
                    log.info("postgres is back")
                for tail in due:
                    book.learn(tail, outcomes.get(tail.run_id, DELETED))
            await self._rest()

    async def _away(self, reason: str) -> None:
        book = self._book
        if book.postgres.failed(book.clock()):
            log.warning("postgres is away", reason=reason)
        if book.postgres.exceeded(book.clock()):
            book.wake_all()
        await asyncio.sleep(random.uniform(*RETRY_SECONDS))

    async def _rest(self) -> None:
        book = self._book
        now = book.clock()
        book.probe_planned = min((tail.probe_due for tail in book.tails.values()), default=now + self._probe_seconds)
        try:
            async with asyncio.timeout(max(0.001, book.probe_planned - now)):
                await book.probes_changed.wait()
        except TimeoutError:
            return
