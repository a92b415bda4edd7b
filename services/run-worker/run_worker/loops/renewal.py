"""The executor's lease, renewed by a thread with its own loop and connection, only while the main loop ticks.

Invariant: `own_lease_end` is counted from before the renewal was sent, less a margin, so this process never believes in
a lease that PostgreSQL has already let expire.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from headrace_kit.errors import Unavailable

from run_worker.adapters.leases import LeaseConnection

TICK_SECONDS: Final = 0.5
"""How often the main loop shows that it lives."""
RETRY_SECONDS: Final = 0.25
"""Pause after a renewal that failed."""
OUTAGE_STREAM_SECONDS: Final = 60.0
"""How long past its lease a run streams on while PostgreSQL is unreachable (spec 3)."""

log = structlog.get_logger("headrace.renewal")


@dataclass(frozen=True, slots=True)
class LeaseFigures:
    """Figures of `[runs]` in budget.toml, in seconds."""

    lease: float
    renew: float
    margin: float
    silence: float


class Lease:
    """What this process knows about its lease: floats and flags, written by the thread, read by the main loop."""

    def __init__(self, figures: LeaseFigures, *, registered_at: float) -> None:
        """`registered_at` is the monotonic time before the executor's row was inserted."""
        self.figures = figures
        self.own_end = registered_at + figures.lease - figures.margin
        self.in_touch_since: float | None = registered_at
        self.ticked_at = registered_at
        self.dead = False
        """True when control has declared this executor dead: stop everything."""

    def renewed(self, sent_at: float) -> None:
        """Note a renewal that was sent at the monotonic time `sent_at`."""
        self.own_end = sent_at + self.figures.lease - self.figures.margin
        if self.in_touch_since is None:
            self.in_touch_since = sent_at

    def missed(self) -> None:
        """Note that PostgreSQL did not answer."""
        self.in_touch_since = None

    def alive(self) -> bool:
        """Say whether tools and models may be called and runs claimed."""
        return not self.dead and time.monotonic() < self.own_end

    def may_stream(self) -> bool:
        """Say whether a run may go on with what it has begun."""
        if self.dead:
            return False
        now = time.monotonic()
        return now < self.own_end or (self.in_touch_since is None and now < self.own_end + OUTAGE_STREAM_SECONDS)

    def may_take_over(self) -> bool:
        """Say whether expired leases may be taken over: after one whole TTL in touch with PostgreSQL."""
        since = self.in_touch_since
        return since is not None and time.monotonic() - since >= self.figures.lease


class LeaseKeeper:
    """The thread. It ends with `stop`, or when control has declared the executor dead."""

    def __init__(self, lease: Lease, connection: LeaseConnection, *, on_dead: Callable[[], None]) -> None:
        """`on_dead` is called on the main loop."""
        self._lease = lease
        self._connection = connection
        self._on_dead = on_dead
        self._main = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; it looks up at least every renewal interval."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 2 * self._lease.figures.renew)

    def _run(self) -> None:
        asyncio.run(self._renew_until_stopped())

    async def _renew_until_stopped(self) -> None:
        try:
            while not self._stop.is_set():
                pause = await self._once()
                if self._lease.dead:
                    self._main.call_soon_threadsafe(self._on_dead)
                    return
                # Short steps: a stop must not wait for a whole interval.
                until = time.monotonic() + pause
                while not self._stop.is_set() and (left := until - time.monotonic()) > 0:  # noqa: ASYNC110  # a thread's event
                    await asyncio.sleep(min(RETRY_SECONDS, left))
        finally:
            self._connection.abort()

    async def _once(self) -> float:
        figures = self._lease.figures
        sent_at = time.monotonic()
        if sent_at - self._lease.ticked_at > figures.silence:
            # The main loop is stuck: let the lease expire, control kills this process.
            log.error("main loop is silent; not renewing", silent_seconds=round(sent_at - self._lease.ticked_at, 1))
            return TICK_SECONDS
        try:
            if await self._connection.renew():
                self._lease.renewed(sent_at)
            else:
                self._lease.dead = True
        except Unavailable as error:
            self._lease.missed()
            log.warning("lease not renewed", error=error.message)
            return RETRY_SECONDS
        return figures.renew


async def tick(lease: Lease) -> None:
    """Show that the main loop lives, until cancelled."""
    while True:
        lease.ticked_at = time.monotonic()
        await asyncio.sleep(TICK_SECONDS)
