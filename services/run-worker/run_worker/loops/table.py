"""The attempts that this executor holds, and the tasks that run them. A slot is free again at the terminal commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

import structlog

from run_worker.adapters.claims import ClaimedRun
from run_worker.loops.attempt import ExecutorParts, Stop
from run_worker.loops.execution import Attempt

log = structlog.get_logger("headrace.table")


class RunTable:
    """Owns every attempt's task."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._attempts: dict[UUID, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self.tokens = 0
        """Pieces of model output received so far, of attempts that have ended."""

    @property
    def free(self) -> int:
        """Slots free now."""
        return self.slots - sum(1 for attempt in self._attempts.values() if attempt.holds_slot)

    def attempts(self) -> list[Attempt]:
        """Return the attempts held now."""
        return list(self._attempts.values())

    def get(self, run_id: UUID) -> Attempt | None:
        """Return the attempt of a run, None if it is not held here."""
        return self._attempts.get(run_id)

    def token_count(self) -> int:
        """Return the pieces of model output received so far."""
        return self.tokens + sum(attempt.buffer.activity for attempt in self._attempts.values())

    def start(self, parts: ExecutorParts, runs: Iterable[ClaimedRun]) -> None:
        """Begin an attempt for each claimed run."""
        for run in runs:
            former = self._attempts.get(run.run_id)
            if former is not None:
                # Handed back and claimed again before its task ended: the former attempt has nothing to say any more.
                former.signal.set(Stop.LOST)
            attempt = Attempt(parts, run)
            self._attempts[run.run_id] = attempt
            self._empty.clear()
            task = asyncio.create_task(attempt.run(), name=f"run {run.run_id} attempt {run.attempt}")
            self._tasks.add(task)
            task.add_done_callback(lambda done, attempt=attempt: self._ended(attempt, done))  # type: ignore[misc]  # late binding on purpose

    def _ended(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        run_id = attempt.run_row.run_id
        self.tokens += attempt.buffer.activity
        self._tasks.discard(task)
        if self._attempts.get(run_id) is attempt:
            del self._attempts[run_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("attempt raised", run_id=str(run_id), exc_info=error)
        if not self._tasks:
            self._empty.set()

    def stop_all(self, reason: Stop) -> None:
        """Stop every attempt."""
        for attempt in self.attempts():
            attempt.signal.set(reason)

    async def wait_empty(self, seconds: float) -> bool:
        """Wait until no attempt is left; return whether that came true in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def cancel_all(self) -> None:
        """Cancel what is left, and await it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
