"""The last steps of an attempt, in the order that makes an end true before it is told.

    flush the run's events (≤ 1 s) → COMMIT (reserves the ids of result and end) → result, and end without a fence
    → the thread's next run is woken

Invariant: a COMMIT without an answer is read back by (run_id, attempt) before anything is decided.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog
from headrace_contract.telemetry import SPAN_PUBLISH
from headrace_kit.errors import ResourceExhausted, Unavailable

from run_worker.adapters.ends import Ended, Ending, commit_end, read_ended
from run_worker.adapters.leases import hand_back, watch
from run_worker.adapters.stream import end_event
from run_worker.loops.attempt import ExecutorParts, Owner
from run_worker.loops.run_buffer import RunBuffer

FLUSH_SECONDS: Final = 1.0
"""How long an end waits for Redis: the outcome never depends on it (spec 3)."""
RETRY_SECONDS: Final = (0.1, 1.0)
"""First and longest pause between two tries of a commit while PostgreSQL is away."""
HAND_BACK_SECONDS: Final = 3.0
"""How long a hand-back is tried; after it the lease runs out by itself."""

log = structlog.get_logger("headrace.ending")


class Closer:
    """Ends or hands back one attempt."""

    def __init__(self, parts: ExecutorParts, owner: Owner, buffer: RunBuffer) -> None:
        self._parts = parts
        self._owner = owner
        self._buffer = buffer

    async def end(self, ending: Ending, *, slot_freed: Callable[[bool], None]) -> Ended | None:
        """Commit the ending and tell it; None when another attempt owns the run or it was ended without us.

        If a cancel was committed meanwhile, the run ends as cancelled, with the same messages and usage.
        Raises EndRefused if PostgreSQL refuses the ending itself.
        """
        await self._parts.flusher.flushed(self._buffer, seconds=FLUSH_SECONDS)
        last_n = self._buffer.freeze()
        ended = await self._commit(ending, last_n)
        if ended is None:
            return None
        slot_freed(ended.dispatched_run_id is not None)
        with self._parts.tracer.start_as_current_span(SPAN_PUBLISH):
            end = None if ended.fenced else end_event(ended.state)
            self._buffer.finish(ended.result, end)
            if not await self._parts.flusher.flushed(self._buffer, seconds=FLUSH_SECONDS):
                log.warning("end not published in time; Redis is slow or away")
        return ended

    async def _commit(self, ending: Ending, last_n: int) -> Ended | None:
        pause = RETRY_SECONDS[0]
        who = self._owner
        while True:
            try:
                ended = await commit_end(
                    self._parts.database,
                    run_id=who.run_id,
                    attempt=who.attempt,
                    owner=who.owner,
                    last_n=last_n,
                    ending=ending,
                )
                if ended is not None:
                    return ended
                # Lost, cancelled meanwhile, or our own commit that had no answer.
                async with self._parts.database.connection() as connection:
                    ended = await read_ended(connection, run_id=who.run_id, attempt=who.attempt)
                if ended is not None or not await self.cancel_waits():
                    return ended
                if ending.state == "cancelled":
                    return None
                ending = as_cancelled(ending)
                continue
            except (Unavailable, ResourceExhausted) as error:
                if not self._parts.lease.may_stream():
                    log.warning("end not committed: PostgreSQL is away and the lease is over", error=error.reason)
                    return None
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(RETRY_SECONDS[1], 2 * pause)

    async def cancel_waits(self) -> bool:
        """Say whether the run is still this attempt's and a cancel was committed."""
        for seen in await watch(self._parts.database, run_ids=[self._owner.run_id]):
            return (
                seen.running
                and seen.cancel
                and (seen.attempt, seen.owner)
                == (
                    self._owner.attempt,
                    self._owner.owner,
                )
            )
        return False

    async def hand_back(
        self, *, fault: bool = False, back_off_seconds: float = 0.0, error: dict[str, object] | None = None
    ) -> bool:
        """Give the lease up; False when the run is not ours or a cancel waits, or PostgreSQL stays away."""
        await self._parts.flusher.flushed(self._buffer, seconds=FLUSH_SECONDS)
        self._buffer.freeze()
        who = self._owner
        try:
            async with asyncio.timeout(HAND_BACK_SECONDS):
                while True:
                    try:
                        return await hand_back(
                            self._parts.database,
                            run_id=who.run_id,
                            attempt=who.attempt,
                            owner=who.owner,
                            fault=fault,
                            back_off_seconds=back_off_seconds,
                            error=error,
                        )
                    except (Unavailable, ResourceExhausted):
                        await asyncio.sleep(RETRY_SECONDS[0])
        except TimeoutError:
            log.warning("not handed back: PostgreSQL is away; the lease will expire")
            return False


def as_cancelled(ending: Ending) -> Ending:
    """Return the same messages and usage as a cancelled end."""
    return replace(
        ending, state="cancelled", error=None, output_message_id=None, output_checkpoint_id=None, interrupts=()
    )
