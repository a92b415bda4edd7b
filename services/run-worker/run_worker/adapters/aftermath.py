"""What follows a commit of control: the projection is told, executors are hinted at. Nothing here decides anything.

Redis away is no error: event-relay tells the same ends from PostgreSQL, and executors read cancels there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import structlog
from headrace_contract.projection import cancel_key
from headrace_kit.postgres import DATABASE_ERRORS, Database
from headrace_kit.redis import AWAY_ERRORS
from redis.asyncio import Redis

from run_worker.adapters.ends import Ended
from run_worker.adapters.executor_client import ExecutorHints
from run_worker.adapters.messages import run_messages
from run_worker.adapters.owned import OwnedTasks
from run_worker.adapters.runs import Cancelled
from run_worker.adapters.stream import publish_unowned_end

PUBLISH_SECONDS: Final = 5.0
"""One statement and one pipeline; later the relay has told the end from PostgreSQL."""
KEY_SECONDS: Final = 1.0
"""SET of a cancel key; executors read the durable cancel within about a second anyway."""

log = structlog.get_logger("run_worker.aftermath")


class Aftermath:
    """Publishes ends that have no owner, sets cancel keys, wakes executors."""

    def __init__(
        self,
        *,
        database: Database,
        redis: Redis,
        hints: ExecutorHints,
        tasks: OwnedTasks,
        shards: int,
        stream_ttl_seconds: int,
        cancel_key_ttl_seconds: int,
    ) -> None:
        self._database = database
        self._redis = redis
        self._hints = hints
        self._tasks = tasks
        self._shards = shards
        self._stream_ttl_seconds = stream_ttl_seconds
        self._cancel_key_ttl_seconds = cancel_key_ttl_seconds

    def dispatched(self) -> None:
        """A run became pending: wake an executor."""
        self._hints.wake()

    def due_in(self, seconds: Sequence[float]) -> None:
        """Runs may be claimed after these seconds: wake one executor at each distinct moment."""
        for delay in sorted({round(value, 1) for value in seconds}):
            self._hints.wake_after(delay)

    def ended(self, ended: Ended) -> None:
        """Append the end of a run that has no owner, and wake for the run that it made room for."""
        self._tasks.start(self._publish(ended), name="publish-end", seconds=PUBLISH_SECONDS)
        if ended.dispatched_run_id is not None:
            self._hints.wake()

    def cancelled(self, run_id: UUID, cancelled: Cancelled) -> None:
        """Tell what a committed cancel did: the end itself, or key and hint for the owner."""
        if cancelled.ended is not None:
            self.ended(cancelled.ended)
        if cancelled.owner is not None:
            self._tasks.start(self._set_key(run_id), name="cancel-key", seconds=KEY_SECONDS)
            self._hints.hint_cancel(cancelled.owner, run_id)

    async def _publish(self, ended: Ended) -> None:
        try:
            messages = await run_messages(self._database, run_id=ended.run_id)
            await publish_unowned_end(
                self._redis,
                ended,
                snapshot_messages=messages,
                shards=self._shards,
                ttl_seconds=self._stream_ttl_seconds,
            )
        except (*AWAY_ERRORS, *DATABASE_ERRORS) as error:
            log.warning("end not published", run_id=str(ended.run_id), error=type(error).__name__)

    async def _set_key(self, run_id: UUID) -> None:
        key = cancel_key(str(run_id), self._shards)
        try:
            await self._redis.set(key, b"1", ex=self._cancel_key_ttl_seconds)
        except AWAY_ERRORS as error:
            log.warning("cancel key not set", run_id=str(run_id), error=type(error).__name__)
