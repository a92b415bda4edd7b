"""Writes a run's two observed times beside its execution; a failure here is a warning and never touches the run.

Order: the output that was seen is in the projection before its time is written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from headrace_kit.errors import ServiceError
from headrace_kit.postgres import Database

from run_worker.adapters import timings
from run_worker.loops.attempt import Owner

FLUSH_SECONDS = 1.0
"""How long the write of `first_output_at` waits for its chunk to be in the projection."""

log = structlog.get_logger("headrace.timings")


class ObservedTimes:
    """The observations of one attempt; at most two statements, in order, by one task."""

    def __init__(self, database: Database, owner: Owner, *, flushed: Callable[[], Awaitable[object]]) -> None:
        """`flushed()` returns when what was seen so far is in the projection."""
        self._database = database
        self._owner = owner
        self._flushed = flushed
        self._prepared_at: float | None = None
        self._first_output_at: float | None = None
        self._first_output = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def prepared(self) -> None:
        """Observe that execution enters the graph now."""
        self._prepared_at = time.monotonic()
        self._task = asyncio.create_task(self._write(), name=f"times {self._owner.run_id}")

    def first_output(self) -> None:
        """Observe the first output now; on the loop's thread."""
        self._first_output_at = time.monotonic()
        self._first_output.set()

    async def settle(self, seconds: float) -> None:
        """Give what was observed `seconds` to be written, then let go."""
        task = self._task
        if task is None:
            return
        if self._first_output_at is not None:
            await asyncio.wait({task}, timeout=seconds)
        task.cancel()
        for result in await asyncio.gather(task, return_exceptions=True):
            if isinstance(result, Exception):
                log.warning("observed time not written", error=type(result).__name__)
        self._task = None

    async def _write(self) -> None:
        who = self._owner
        if self._prepared_at is not None:
            age = time.monotonic() - self._prepared_at
            try:
                await timings.write_prepared(
                    self._database, run_id=who.run_id, attempt=who.attempt, owner=who.owner, age_seconds=age
                )
            except ServiceError as error:
                log.warning("prepared_at not written", error=error.reason)
        await self._first_output.wait()
        await self._flushed()
        if self._first_output_at is not None:
            age = time.monotonic() - self._first_output_at
            await timings.write_first_output(
                self._database, run_id=who.run_id, attempt=who.attempt, owner=who.owner, age_seconds=age
            )
