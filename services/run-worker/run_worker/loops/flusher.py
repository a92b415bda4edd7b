"""One flusher per executor: merges every run's deltas for a window and sends all runs' batches in one pipeline.

Invariant: there is one pipeline in flight, so what comes meanwhile merges by itself; the window stretches when flushing
or the loop itself is slow, so that the cost of a token falls under load.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog
from headrace_kit.redis import AWAY_ERRORS

from run_worker.adapters.stream import Appended, Batch, ProjectionWriter
from run_worker.loops.run_buffer import Health, RunBuffer

LOAD_SHARE: Final = 50.0
"""The window is at least this many times a flush's own time: flushing takes at most a fiftieth of the loop, and the
busier it is the more tokens share an event (measured: 20 runs at 50 tokens/s, one flush 1 ms, window 50 ms)."""
SMOOTHING: Final = 0.2
"""Weight of the newest flush in the running mean."""
AWAY_PAUSE_SECONDS: Final = 0.5
"""Between two tries while Redis is away, or a lost stream waits for its lease check."""
LINGER_SECONDS: Final = 30.0
"""How long a run's last events are offered to an absent Redis; after it the relay tells the end from PostgreSQL."""

log = structlog.get_logger("headrace.flusher")


@dataclass(slots=True)
class _Member:
    buffer: RunBuffer
    lease_alive: Callable[[], Awaitable[bool | None]]
    superseded: Callable[[], None]
    idle: asyncio.Event
    passed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each flush that it was due in."""
    leave_at: float | None = None


class Flusher:
    """The executor's only writer to the projection."""

    def __init__(self, writer: ProjectionWriter, *, window_seconds: float, window_max_seconds: float) -> None:
        self._writer = writer
        self._window_base = window_seconds
        self._window_max = window_max_seconds
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._members: dict[RunBuffer, _Member] = {}
        self._due: dict[RunBuffer, None] = {}
        self._wakeup = asyncio.Event()
        self._tick_at = float("inf")
        self._mean_flush = 0.0
        self.window_seconds = window_seconds
        """The merge window now."""
        self.flushes = 0
        self.appended = 0
        self._retry_at = 0.0
        self.away = False
        """True while Redis does not answer."""

    def join(
        self,
        buffer: RunBuffer,
        *,
        lease_alive: Callable[[], Awaitable[bool | None]],
        superseded: Callable[[], None],
    ) -> None:
        """Take a run in. `lease_alive` asks PostgreSQL (None: it is away); `superseded` stops the run."""
        idle = asyncio.Event()
        idle.set()
        self._members[buffer] = _Member(buffer, lease_alive, superseded, idle)

    def leave(self, buffer: RunBuffer) -> None:
        """Let a run go once its last events are in Redis, or offered for long enough."""
        member = self._members.get(buffer)
        if member is None:
            return
        if buffer.closed or not buffer.waiting():
            self._forget(buffer)
        else:
            member.leave_at = self._loop.time() + LINGER_SECONDS
            self.wake(buffer, True)

    def wake(self, buffer: RunBuffer, urgent: bool) -> None:
        """Note that a run has something to tell, now or when its window closes. Callable from any thread."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.wake, buffer, urgent)
            return
        member = self._members.get(buffer)
        if member is None:
            return
        member.idle.clear()
        now = self._loop.time()
        if urgent:
            at = now
        else:
            if not now < self._tick_at < float("inf"):
                self._tick_at = now + self.window_seconds
            at = self._tick_at
        if self.away:
            at = max(at, self._retry_at)
        if buffer not in self._due:
            self._due[buffer] = None
            buffer.due_at = at
        elif at < buffer.due_at:
            buffer.due_at = at
        if urgent or len(self._due) == 1:
            self._wakeup.set()

    async def flushed(self, buffer: RunBuffer, *, seconds: float) -> bool:
        """Send what the run has and wait until Redis has it, at most `seconds`; return whether it has."""
        member = self._members.get(buffer)
        if member is None or not buffer.waiting():
            return True
        self.wake(buffer, True)
        try:
            async with asyncio.timeout(seconds):
                await member.idle.wait()
        except TimeoutError:
            return False
        return not buffer.waiting()

    async def eased(self, buffer: RunBuffer, *, seconds: float) -> None:
        """Wait until less of the run waits for Redis, or Redis is away, at most `seconds`."""
        member = self._members.get(buffer)
        if member is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while buffer.pressed() and not (self.away or buffer.closed):
                    member.passed.clear()
                    self.wake(buffer, True)
                    await member.passed.wait()

    async def run(self) -> None:
        """Flush until cancelled."""
        while True:
            planned = await self._next_due()
            now = self._loop.time()
            until = now
            if self._tick_at <= now:
                # One tick for all runs: whatever waits for its window goes along, so windows fall together.
                until, self._tick_at = now + self.window_seconds, float("inf")
            due = [buffer for buffer in self._due if buffer.due_at <= until]
            for buffer in due:
                del self._due[buffer]
            await self._flush(due)
            # How late the loop came to it is load as much as our own work is.
            took = self._loop.time() - planned
            self._mean_flush += SMOOTHING * (took - self._mean_flush)
            self.window_seconds = min(self._window_max, max(self._window_base, LOAD_SHARE * self._mean_flush))

    async def _next_due(self) -> float:
        """Wait until something is due; return when it should have been."""
        while True:
            first = min([buffer.due_at for buffer in self._due], default=None)
            if first is not None and first <= self._loop.time():
                return first
            self._wakeup.clear()
            try:
                async with asyncio.timeout_at(first):
                    await self._wakeup.wait()
            except TimeoutError:
                continue

    async def _flush(self, due: list[RunBuffer]) -> None:
        now = self._loop.time()
        await self._heal([buffer for buffer in due if buffer.health is not Health.CLEAN])
        batches: list[Batch] = []
        senders: list[RunBuffer] = []
        for buffer in due:
            batch = buffer.take(now)
            if batch is not None:
                batches.append(batch)
                senders.append(buffer)
        if batches:
            self.flushes += 1
            outcomes = await self._writer.append(batches)
            now = self._loop.time()
            for buffer, batch, outcome in zip(senders, batches, outcomes, strict=True):
                buffer.settle(batch, outcome, now)
                if outcome is Appended.OK:
                    self.appended += len(batch.entries)
            self._note_away(any(outcome is Appended.AWAY for outcome in outcomes))
        for buffer in due:
            self._after(buffer)

    def _note_away(self, away: bool) -> None:
        if away:
            self._retry_at = self._loop.time() + AWAY_PAUSE_SECONDS
        if away != self.away:
            self.away = away
            log.warning("projection away" if away else "projection back")

    def _after(self, buffer: RunBuffer) -> None:
        member = self._members.get(buffer)
        if member is None:
            return
        member.passed.set()
        now = self._loop.time()
        if buffer.closed or not buffer.waiting():
            member.idle.set()
            if member.leave_at is not None or buffer.closed:
                self._forget(buffer)
            return
        if member.leave_at is not None and now >= member.leave_at:
            log.warning("last events not published; the relay tells them from PostgreSQL", run_id=buffer.run_id)
            self._forget(buffer)
            return
        # Not acknowledged, or more came meanwhile (then wake has set a due time already).
        retry = now if buffer.health is Health.CLEAN and not self.away else now + AWAY_PAUSE_SECONDS
        if buffer not in self._due:
            self._due[buffer] = None
            buffer.due_at = retry
        elif buffer.health is not Health.CLEAN or self.away:
            buffer.due_at = max(buffer.due_at, retry)

    def _forget(self, buffer: RunBuffer) -> None:
        member = self._members.pop(buffer, None)
        self._due.pop(buffer, None)
        buffer.close()
        if member is not None:
            member.idle.set()
            member.passed.set()

    async def _heal(self, sick: list[RunBuffer]) -> None:
        doubtful = [buffer for buffer in sick if buffer.health is Health.DOUBT and not buffer.closed]
        if doubtful:
            try:
                last_ids = await self._writer.last_ids([buffer.run_id for buffer in doubtful])
            except AWAY_ERRORS:
                self._note_away(True)
                return
            self._note_away(False)
            for buffer, last in zip(doubtful, last_ids, strict=True):
                if not buffer.resync(last, self._loop.time()):
                    log.warning("a newer attempt writes", run_id=buffer.run_id, attempt=buffer.attempt)
                    self._stop(buffer)
        lost = [buffer for buffer in sick if buffer.health is Health.LOST and not buffer.closed]
        await asyncio.gather(*(self._recreate(buffer) for buffer in lost))

    async def _recreate(self, buffer: RunBuffer) -> None:
        if buffer.frozen:
            # The reserved ids follow n: a snapshot has no place any more, and the relay tells the end.
            self._forget(buffer)
            return
        member = self._members.get(buffer)
        alive = None if member is None else await member.lease_alive()
        if alive is None:
            return
        if alive:
            log.warning("stream lost; begun again", run_id=buffer.run_id, attempt=buffer.attempt)
            buffer.recreate()
        else:
            self._stop(buffer)

    def _stop(self, buffer: RunBuffer) -> None:
        member = self._members.get(buffer)
        self._forget(buffer)
        if member is not None:
            member.superseded()
