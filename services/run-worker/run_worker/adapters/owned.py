"""Short tasks that nobody waits for, and that still have an owner: bounded in number and time, their errors logged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger("run_worker.owned")


class OwnedTasks:
    """Runs coroutines in the background; `close` gives those in flight a last moment and cancels the rest."""

    def __init__(self, *, limit: int) -> None:
        """Own at most `limit` tasks; what comes on top is dropped with a warning, so only hints may go here."""
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def start(self, work: Coroutine[Any, Any, None], *, name: str, seconds: float) -> bool:
        """Run `work` for at most `seconds`; False when it was dropped."""
        if self._closing or len(self._tasks) >= self._limit:
            work.close()
            log.warning("background work dropped", task=name, running=len(self._tasks))
            return False
        task = asyncio.create_task(self._bounded(work, seconds), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return True

    async def close(self, *, seconds: float) -> None:
        """Accept nothing more, wait `seconds` for what runs, then cancel and await it."""
        self._closing = True
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    @staticmethod
    async def _bounded(work: Coroutine[Any, Any, None], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await work

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("background work failed", task=task.get_name(), error=f"{type(error).__name__}: {error}")
