"""All followed runs of this process: which tails exist, when they are due, who has to be told that it stops.

Invariant: one tail per run, whoever watches; it exists exactly as long as somebody does.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from headrace_contract.projection import EventId, events_key

from event_relay.domain.entry import BEGINNING
from event_relay.domain.outage import Outage
from event_relay.domain.outcome import Outcome
from event_relay.domain.pace import Pace, PaceFigures, next_on_grid
from event_relay.domain.tail import Follower, Tail, Window

QUEUE_POLL_SECONDS = 1.0
"""Positions of waiting runs are asked each second (spec 4), all by one statement."""


class TailBook:
    """See the module. Used by one event loop; no method waits."""

    def __init__(self, relay: Mapping[str, Any], *, shards: int, clock: Callable[[], float]) -> None:
        """`relay` is the budget's table of that name."""
        self.clock = clock
        self.tails: dict[UUID, Tail] = {}
        self.redis = Outage("redis", limit_seconds=relay["outage_seconds"])
        self.postgres = Outage("postgres", limit_seconds=relay["outage_seconds"])
        self.ready = False
        """The database can be read by this code."""
        self.stopping = False
        self.reads_changed = asyncio.Event()
        """A tail became due earlier than the strategy knows."""
        self.probes_changed = asyncio.Event()
        """A run has to be probed earlier than the watch loop plans."""
        self.probe_planned = float("inf")
        """When the watch loop asks next (monotonic seconds)."""
        self._relay = relay
        self._shards = shards
        self._pace = PaceFigures.of(relay)
        self._due: list[tuple[float, int, Tail]] = []
        self._order = 0

    @property
    def viewers(self) -> int:
        """Return the number of open streams."""
        return sum(len(tail.followers) for tail in self.tails.values())

    def join(self, run_id: UUID, outcome: Outcome, follower: Follower) -> Tail:
        """Add a viewer and return its run's tail, which learns `outcome`."""
        tail = self.tails.get(run_id)
        if tail is None:
            window = Window(max_reads=self._relay["viewer_queue_batches"], max_bytes=self._relay["batch_max_bytes"])
            tail = Tail(
                run_id, events_key(str(run_id), self._shards), window=window, pace=Pace(self._pace, self.clock())
            )
            self.tails[run_id] = tail
        tail.followers.add(follower)
        self.learn(tail, outcome)
        if tail.probe_due < self.probe_planned:
            self.probes_changed.set()
        return tail

    def leave(self, tail: Tail, follower: Follower) -> None:
        """Remove a viewer, and the tail with its last one."""
        tail.followers.discard(follower)
        if not tail.followers and self.tails.get(tail.run_id) is tail:
            del self.tails[tail.run_id]
            tail.live = False

    def learn(self, tail: Tail, outcome: Outcome) -> None:
        """Take what PostgreSQL said of a run, and decide when to ask again."""
        now, settle = self.clock(), self._relay["settle_seconds"]
        changed = outcome != tail.outcome
        if tail.live and tail.outcome is not None and outcome.state != tail.outcome.state:
            self._read_now(tail)  # a run that begins or ends is about to write
        tail.outcome = outcome
        tail.ended = outcome.settled(settle)
        if outcome.over and not tail.ended:
            tail.probe_due = now + max(0.0, settle - (outcome.settled_seconds or 0.0))
        elif outcome.waiting:
            tail.probe_due = next_on_grid(now, QUEUE_POLL_SECONDS)
        else:
            tail.probe_due = next_on_grid(now, self._relay["probe_seconds"])
        if changed:
            tail.wake()

    def go_live(self, tail: Tail, place: EventId) -> None:
        """Let the strategy read a tail from `place` on, at once."""
        tail.start(place)
        self._read_now(tail)

    def lose(self, tail: Tail) -> None:
        """Note that a tail's stream is gone, and look for its successor at once."""
        tail.lose()
        if tail.live:
            self._read_now(tail)

    def _read_now(self, tail: Tail) -> None:
        tail.pace.saw_events(self.clock())
        self.schedule(tail, self.clock())
        self.reads_changed.set()

    def schedule(self, tail: Tail, due: float) -> None:
        """Set when a tail is read next."""
        tail.due = due
        self._order += 1
        heapq.heappush(self._due, (due, self._order, tail))

    def take_due(self, now: float) -> list[Tail]:
        """Take the live tails whose time has come; each has to be scheduled again."""
        taken = []
        while self._due and self._due[0][0] <= now:
            due, _, tail = heapq.heappop(self._due)
            if tail.live and tail.due == due:
                tail.due = float("inf")
                taken.append(tail)
        return taken

    def next_due(self) -> float:
        """Return when the next tail is due; infinity when none is."""
        while self._due and not (self._due[0][2].live and self._due[0][2].due == self._due[0][0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else float("inf")

    def idle_tails(self, seconds: float) -> list[Tail]:
        """Return the live tails that have read something once and nothing for that long."""
        now = self.clock()
        return [
            tail
            for tail in self.tails.values()
            if tail.live and tail.position > BEGINNING and tail.pace.idle_seconds(now) >= seconds
        ]

    def redis_failed(self) -> None:
        """Note that a viewer's read failed; the strategy finds out when Redis is back."""
        self.redis.failed(self.clock())
        self.reads_changed.set()

    def wake_all(self) -> None:
        """Wake every viewer of every run."""
        for tail in self.tails.values():
            tail.wake()

    def stop(self) -> None:
        """Tell every viewer that the relay stops."""
        self.stopping = True
        self.wake_all()
