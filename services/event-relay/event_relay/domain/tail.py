"""One followed run: its tail of the stream, shared by all viewers in this process, and what PostgreSQL says of it.

Invariant: the window holds every entry of the stream with floor < id <= position, in order. So for a viewer whose place
is at or behind the floor's right side (`covers`), the window's entries after its place are exactly the stream's; any
other viewer reads pages from Redis by its place. Both are the same log read in order from the same place: changing from
one to the other can neither skip nor double an event.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol
from uuid import UUID

from headrace_contract.projection import EventId

from event_relay.domain.entry import BEGINNING, Entry, size_of
from event_relay.domain.outcome import Outcome
from event_relay.domain.pace import Pace


class Follower(Protocol):
    """What a tail knows of a viewer."""

    after: EventId
    """Its place: the newest event it has been shown."""

    def wake(self) -> None:
        """Look again: there is something new."""


class _Read(NamedTuple):
    entries: list[Entry]
    size: int


class Window:
    """The reads that some viewer has not taken yet, bounded in reads and bytes: each viewer's queue, held once."""

    __slots__ = ("_max_bytes", "_max_reads", "_reads", "floor", "size")

    def __init__(self, *, max_reads: int, max_bytes: int) -> None:
        self._reads: deque[_Read] = deque()
        self._max_reads = max_reads
        self._max_bytes = max_bytes
        self.floor = BEGINNING
        self.size = 0

    def append(self, entries: list[Entry], *, needed_after: EventId) -> None:
        """Add one read; drop those that everybody has taken (up to `needed_after`) and, over the bound, the oldest."""
        read = _Read(entries, size_of(entries))
        self._reads.append(read)
        self.size += read.size
        while self._reads and self._reads[0].entries[-1].at <= needed_after:
            self._drop_oldest()
        while len(self._reads) > self._max_reads or (self.size > self._max_bytes and self._reads):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        read = self._reads.popleft()
        self.size -= read.size
        self.floor = read.entries[-1].at

    def clear(self, floor: EventId) -> None:
        """Forget everything; the window begins after `floor`."""
        self._reads.clear()
        self.size = 0
        self.floor = floor

    def after(self, place: EventId) -> list[Entry]:
        """Return the entries behind `place`, which the window must cover."""
        found: list[list[Entry]] = []
        for read in reversed(self._reads):
            if read.entries[-1].at <= place:
                break
            found.append(read.entries)
        if not found:
            return []
        oldest = found[-1]
        if oldest[0].at <= place:
            found[-1] = [entry for entry in oldest if entry.at > place]
        return [entry for entries in reversed(found) for entry in entries]


class Tail:
    """See the module. Read by a tail strategy while `live`; its outcome is refreshed by the watch loop."""

    def __init__(self, run_id: UUID, key: str, *, window: Window, pace: Pace) -> None:
        self.run_id = run_id
        self.key = key
        self.pace = pace
        self.followers: set[Follower] = set()
        self.window = window
        self.live = False
        """A viewer has caught up: the strategy reads on from `position`."""
        self.position = BEGINNING
        self.losses = 0
        """How often the stream was found gone or set back."""
        self.due = float("inf")
        """When to read next (monotonic seconds)."""
        self.outcome: Outcome | None = None
        self.ended = False
        """The outcome is settled: a read that began after this was set and found no `end` may be followed by ours."""
        self.probe_due = 0.0
        """When PostgreSQL is asked next (monotonic seconds)."""

    def start(self, place: EventId) -> None:
        """Go live at the place that a viewer has reached."""
        self.live = True
        self.position = place
        self.window.clear(place)

    def covers(self, place: EventId) -> bool:
        """Return whether the window holds all that the tail has read behind `place`."""
        return self.live and place >= self.window.floor

    def extend(self, entries: list[Entry]) -> None:
        """Add what was read behind `position`."""
        self.position = entries[-1].at
        needed_after = min((follower.after for follower in self.followers), default=self.position)
        self.window.append(entries, needed_after=needed_after)
        self.wake()

    def lose(self) -> None:
        """The stream is gone or was set back: read it from its beginning, whatever that is going to be."""
        self.losses += 1
        self.position = BEGINNING
        self.window.clear(BEGINNING)
        self.wake()

    def wake(self) -> None:
        """Wake all viewers."""
        for follower in self.followers:
            follower.wake()
