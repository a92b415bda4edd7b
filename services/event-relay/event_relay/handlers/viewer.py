"""One viewer of one run: what it is shown next, from its own place, whatever happens around it.

    locate ──▶ take from the tail's window ◀──▶ read pages ──▶ end: from the stream, or told from PostgreSQL
       │              │ hole                       │ hole, or the stream is gone
       └──────────────┴──────────▶ reset ◀─────────┘
                                     └──▶ newest snapshot (or the beginning), then on

Invariant: `after` is the only memory of what was shown; every event shown passed `Continuity`, in order, once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import orjson
from headrace.relay.v1 import relay_service_pb2 as pb
from headrace_contract.projection import ALWAYS_SENT, EventId, EventName, ResetReason
from headrace_kit.errors import ResourceExhausted, Unavailable

from event_relay.domain.book import TailBook
from event_relay.domain.continuity import Continuity, follows
from event_relay.domain.entry import BEGINNING, Entry, before, size_of
from event_relay.domain.outcome import Outcome, ending
from event_relay.domain.ports import Runs, Streams
from event_relay.domain.snapshot import bounded_snapshot
from event_relay.domain.tail import Tail
from event_relay.errors import RedisAway, relay_stopping, run_not_found, store_away
from event_relay.handlers.packing import batches, heartbeat

RETRY_SECONDS = (0.2, 0.8)
"""Between a viewer's own tries while a store is away; the spread keeps many of them from trying together."""


class Viewer:
    """See the module. `join` it to the book before `messages`, and `leave` after."""

    def __init__(
        self,
        book: TailBook,
        streams: Streams,
        runs: Runs,
        *,
        relay: Mapping[str, Any],
        after: EventId,
        modes: frozenset[str],
    ) -> None:
        """`modes` are event names; empty shows all."""
        self.after = after
        self._book = book
        self._streams = streams
        self._runs = runs
        self._relay = relay
        self._shown = modes | ALWAYS_SENT if modes else None
        self._place = Continuity(after if after > BEGINNING else None)
        self._unlocated = after > BEGINNING
        self._owed: ResetReason | None = None
        self._hole: EventId | None = None
        self._losses = 0
        self._queue_shown: bytes | None = None
        self._parked = False
        self._page_count: int = relay["read_count"]
        self._out: list[pb.Event] = []
        self._done = False
        self._woken = asyncio.Event()
        self._tail: Tail

    def join(self, tail: Tail, outcome: Outcome) -> None:
        """Start from the tail's present; `outcome` is what the run's opening said."""
        self._tail = tail
        self._losses = tail.losses
        if outcome.result_id is not None and self.after >= outcome.result_id:
            self._unlocated = False  # a cursor at `result` is known even when Redis is empty

    def wake(self) -> None:
        """See Follower."""
        self._woken.set()

    async def messages(self) -> AsyncGenerator[pb.FollowRunResponse, None]:
        """Yield batches and heartbeats until `end` was shown.

        Raises NotFound when the thread is deleted, Unavailable when the relay stops or a store stays away.
        """
        clock, period = self._book.clock, float(self._relay["heartbeat_seconds"])
        next_beat = clock() + period
        fetching: asyncio.Task[None] | None = None
        try:
            while True:
                if self._woken.is_set():
                    self._woken.clear()
                    self._parked = False
                self._check_alive()
                if fetching is None and not self._take():
                    fetching = asyncio.create_task(self._fetch(), name=f"fetch {self._tail.run_id}")
                if fetching is not None:
                    await asyncio.wait({fetching}, timeout=max(0.0, next_beat - clock()))
                    if fetching.done():
                        done, fetching = fetching, None
                        done.result()
                elif not self._out and not self._woken.is_set():
                    await self._rest(next_beat - clock())
                out, self._out = self._out, []
                for batch in batches(out, self._relay["batch_max_bytes"]):
                    yield batch
                if self._done:
                    return
                if clock() >= next_beat:
                    yield heartbeat()
                    next_beat += period * (1 + max(0.0, clock() - next_beat) // period)
        finally:
            if fetching is not None:
                fetching.cancel()
                await asyncio.wait({fetching})

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._woken.wait()
        except TimeoutError:
            return
        finally:
            self._parked = False

    def _check_alive(self) -> None:
        outcome = self._tail.outcome
        if self._book.stopping:
            raise relay_stopping()
        if outcome is not None and outcome.deleted:
            raise run_not_found(str(self._tail.run_id))
        for outage in (self._book.redis, self._book.postgres):
            if outage.exceeded(self._book.clock()):
                raise store_away(outage.store, outage.limit_seconds)

    def _take(self) -> bool:
        """Show what is in memory; return False when Redis or PostgreSQL has to be asked."""
        self._show_queue()
        if self._tail.losses != self._losses:
            self._losses = self._tail.losses
            self._after_loss()
        if self._parked:
            return True
        if self._unlocated or self._owed is not None or not self._tail.covers(self.after):
            return False
        entries = self._tail.window.after(self.after)
        if entries:
            self._accept(entries)
            self._woken.set()
            return True
        return not self._tail.ended

    def _show_queue(self) -> None:
        queue = self._tail.outcome.queue if self._tail.outcome is not None else None
        if queue is not None and queue != self._queue_shown:
            self._out.append(pb.Event(event=EventName.QUEUE, data=queue))
        self._queue_shown = queue

    def _after_loss(self) -> None:
        self._parked = False
        if self._place.last is None:
            self.after = BEGINNING
        else:
            self._owed = ResetReason.LOST

    def _accept(self, entries: list[Entry]) -> None:
        """Show entries up to a hole or the end."""
        for entry in entries:
            if not self._place.passes(entry.at, entry.event):
                self._owed, self._hole = ResetReason.GAP, entry.at
                return
            self.after = entry.at
            if self._shown is None or entry.event.partition("|")[0] in self._shown:
                self._out.append(pb.Event(id=str(entry.at), event=entry.event, data=entry.data))
            if entry.event == EventName.END:
                self._done = True
                return

    async def _fetch(self) -> None:
        """Ask Redis (and, for a synthesized end, PostgreSQL) once; an absence is noted and waited out."""
        try:
            if self._unlocated:
                await self._locate()
            elif self._owed is not None:
                await self._reset(self._owed)
            else:
                await self._read_page()
            self._book.redis.recovered()
        except RedisAway:
            self._book.redis_failed()
            await asyncio.sleep(random.uniform(*RETRY_SECONDS))
        except (Unavailable, ResourceExhausted):
            self._book.postgres.failed(self._book.clock())
            await asyncio.sleep(random.uniform(*RETRY_SECONDS))

    async def _locate(self) -> None:
        """Find the cursor in the stream, or owe a reset."""
        page = await self._streams.page(self._tail.key, self.after, self._page_count, inclusive=True)
        if page and page[0].at == self.after:
            self._accept(page[1:])
        elif page and page[0].at.attempt == self.after.attempt and follows(self.after, page[0].at):
            self._accept(page)  # trimmed exactly up to the cursor: nothing is missing
        else:
            anchor = await self._streams.anchor(self._tail.key, self._relay["read_count"])
            if anchor is None:
                self._owed = ResetReason.LOST
            elif anchor.first > self.after:
                self._owed = ResetReason.TRIMMED
            else:
                self._owed = ResetReason.UNKNOWN_CURSOR
        self._unlocated = False

    async def _read_page(self) -> None:
        """Read on by the viewer's own place; at the stream's end join the tail, or tell the end."""
        tail, ended = self._tail, self._tail.ended
        left_behind = tail.live and not tail.covers(self.after)
        page = await self._streams.page(tail.key, self.after, self._page_count)
        self._accept(page)
        caught_up = len(page) < self._page_count
        self._fit_page_count(page)
        if self._done or self._owed is not None or not caught_up:
            return
        if ended and not page:
            await self._tell_end()
        elif not tail.live and not ended:
            self._book.go_live(tail, self.after)
        elif not page and left_behind:
            self._book.lose(tail)  # the tail has read entries behind our place, and they are gone

    def _fit_page_count(self, page: list[Entry]) -> None:
        """Keep pages near one batch, so that a slow viewer of large events holds little."""
        if page:
            fits = int(self._relay["batch_max_bytes"] * len(page) / max(1, size_of(page)))
            self._page_count = max(1, min(self._relay["read_count"], fits))

    async def _reset(self, reason: ResetReason) -> None:
        """Tell of the lost continuity together with the place to begin again, as soon as there is one."""
        ended = self._tail.ended
        anchor = await self._streams.anchor(self._tail.key, self._relay["read_count"])
        if anchor is None:
            if ended:
                await self._tell_end()
                return
            self._owed = ResetReason.LOST
            if not self._tail.live:
                self._book.go_live(self._tail, BEGINNING)
            self._parked = True
            return
        if reason is ResetReason.GAP and self._place.last is not None and anchor.first > self._place.last:
            reason = ResetReason.TRIMMED
        self.after = before(anchor.snapshot) if anchor.snapshot is not None else BEGINNING
        self._place.restart(anchored=anchor.snapshot is not None or anchor.begins_whole, told=self._hole)
        self._owed = None
        self._show_reset(reason)

    def _show_reset(self, reason: ResetReason) -> None:
        self._out.append(pb.Event(event=EventName.RESET, data=orjson.dumps({"reason": reason})))

    async def _snapshot(self) -> bytes:
        return bounded_snapshot(await self._runs.snapshot(self._tail.run_id), self._relay["batch_max_bytes"])

    async def _tell_end(self) -> None:
        """Show the end from PostgreSQL, under the stored ids; the stream was read after it settled and holds none."""
        outcome = self._tail.outcome
        if outcome is None or outcome.result_id is None or outcome.end_id is None or outcome.result is None:
            raise Unavailable("the run's outcome is incomplete", reason="OUTCOME_INCOMPLETE")
        plan = ending(self._place.last, outcome.result_id)
        snapshot = await self._snapshot() if plan.snapshot else b""
        if plan.reset:
            self._show_reset(ResetReason.LOST)
        if plan.snapshot:
            self._out.append(pb.Event(event=EventName.SNAPSHOT, data=snapshot))
        if plan.result:
            self._out.append(pb.Event(id=str(outcome.result_id), event=EventName.RESULT, data=outcome.result))
        end = orjson.dumps({"status": outcome.state})
        self._out.append(pb.Event(id=str(outcome.end_id), event=EventName.END, data=end))
        self._done = True
