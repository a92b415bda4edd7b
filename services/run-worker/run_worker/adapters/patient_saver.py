"""The run's saver while PostgreSQL is away: it waits as long as the lease permits instead of failing the graph."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from headrace_kit.errors import ResourceExhausted, Unavailable
from headrace_kit.postgres import Database
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from run_worker.adapters.saver import Fence, PostgresSaver

RETRY_SECONDS: Final = (0.05, 1.0)
"""First and longest pause between two tries: a failover takes seconds, a full pool milliseconds."""

T = TypeVar("T")


class PatientSaver(PostgresSaver):
    """Repeats a statement that had no answer; each is idempotent and guarded by the fence, so a repeat is harmless."""

    def __init__(self, database: Database, *, fence: Fence, patience: Callable[[], bool]) -> None:
        """`patience()` says whether the run may go on waiting."""
        super().__init__(database, fence=fence)
        self._patience = patience
        self._read_ahead: CheckpointTuple | None = None

    async def read_ahead(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read the thread's latest checkpoint, and keep it for the graph's own first read of it.

        Nobody else writes in between: the thread has one active run, and this saver is fenced to it.
        """
        self._read_ahead = await self.aget_tuple(config)
        return self._read_ahead

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint, as PostgresSaver does."""
        ahead, self._read_ahead = self._read_ahead, None
        place = config["configurable"]
        if ahead is not None and not place.get("checkpoint_id") and not place.get("checkpoint_ns"):
            return ahead
        return await self._patiently(lambda: super(PatientSaver, self).aget_tuple(config))

    async def _write(self, statement: str, *args: Any) -> None:
        await self._patiently(lambda: super(PatientSaver, self)._write(statement, *args))

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        pause = RETRY_SECONDS[0]
        while True:
            try:
                return await work()
            except (Unavailable, ResourceExhausted):
                if not self._patience():
                    raise
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(RETRY_SECONDS[1], 2 * pause)
