"""Tells health: SERVING while PostgreSQL answers with a schema that this code reads. Redis away is not unhealthy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from headrace_kit.errors import FailedPrecondition, ResourceExhausted, Unavailable

from event_relay.domain.book import TailBook

CHECK_SECONDS = 2.0
"""Between checks once serving; half a second before, so that a start is not slower than what it waits for."""
START_CHECK_SECONDS = 0.5
SCHEMA_WAIT_SECONDS = 120.0
"""How long a wrong schema is waited for: migrations run beside the start. Then the process ends with both numbers."""

log = structlog.get_logger("event_relay.health")


class Health:
    """The loop; see the module."""

    def __init__(
        self,
        book: TailBook,
        *,
        check: Callable[[], Awaitable[None]],
        set_serving: Callable[[bool], Awaitable[None]],
        schema_wait_seconds: float = SCHEMA_WAIT_SECONDS,
    ) -> None:
        self._book = book
        self._check = check
        self._set_serving = set_serving
        self._schema_wait_seconds = schema_wait_seconds
        self._wrong_since: float | None = None

    async def run(self) -> None:
        """Check until cancelled.

        Raises FailedPrecondition when the schema stays one that this code cannot read.
        """
        while True:
            reason = await self._look()
            if self._book.ready != (not reason):
                self._book.ready = not reason
                await self._set_serving(self._book.ready)
                log.info("serving" if self._book.ready else "not serving", reason=reason)
            await asyncio.sleep(CHECK_SECONDS if self._book.ready else START_CHECK_SECONDS)

    async def _look(self) -> str:
        try:
            await self._check()
        except (Unavailable, ResourceExhausted) as error:
            self._wrong_since = None
            return error.reason
        except FailedPrecondition as error:
            now = self._book.clock()
            self._wrong_since = now if self._wrong_since is None else self._wrong_since
            if now - self._wrong_since > self._schema_wait_seconds:
                raise
            return error.reason
        self._wrong_since = None
        return ""
