"""The numbered events of one attempt: those on their way to Redis, and a few seconds of those that arrived.

Invariant: n counts 1, 2, 3, …, and a number is left out only to tell viewers that something is missing; what is on its
way is offered again unchanged until Redis has it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from run_worker.adapters.stream import Entry

RING_MAX_BYTES: Final = 2 * 1024 * 1024
"""Arrived events kept for a re-send, beside their age: a lost tail is seconds of text, not megabytes."""
ENTRY_OVERHEAD_BYTES: Final = 48
"""What an entry takes in Redis beside its data, about."""


class SentLog:
    """Numbers events and remembers them for as long as Redis may need them again."""

    def __init__(self, ring_seconds: float) -> None:
        self.n = 0
        """The last number given."""
        self.acked = 0
        """The last number that Redis is known to have."""
        self.underway: list[Entry] = []
        self._ring_seconds = ring_seconds
        # One element a batch: when it arrived, its bytes, its entries.
        self._ring: deque[tuple[float, int, list[Entry]]] = deque()
        self._ring_bytes = 0

    def append(self, event: str, data: bytes) -> int:
        """Number an event; return its size in Redis, about."""
        self.n += 1
        self.underway.append(Entry(self.n, event, data))
        return len(data) + ENTRY_OVERHEAD_BYTES

    def skip(self) -> None:
        """Leave a number out: whoever reads on finds the hole."""
        self.n += 1

    def arrived(self, last_n: int, now: float) -> None:
        """Note that Redis has everything up to `last_n`."""
        if not self.underway or last_n < self.underway[0].n:
            return
        there = sum(entry.n <= last_n for entry in self.underway)
        arrived, self.underway = self.underway[:there], self.underway[there:]
        self.acked = arrived[-1].n
        size = sum([len(entry.data) for entry in arrived]) + ENTRY_OVERHEAD_BYTES * len(arrived)
        self._ring.append((now, size, arrived))
        self._ring_bytes += size
        while self._ring and (self._ring[0][0] < now - self._ring_seconds or self._ring_bytes > RING_MAX_BYTES):
            self._ring_bytes -= self._ring.popleft()[1]

    def rewind(self, last_n: int, now: float) -> bool:
        """Go back to what Redis really has; False when the ring does not reach back that far."""
        if last_n >= self.acked:
            self.arrived(last_n, now)
            return True
        kept = [entry for _, _, entries in self._ring for entry in entries]
        again = [entry for entry in kept if entry.n > last_n]
        # The first one that Redis lacks may follow a number that was left out.
        reaches = bool(again) and (again[0].n == last_n + 1 or again[0] is not kept[0])
        if reaches:
            self.underway = [*again, *self.underway]
            self.acked = last_n
            self._clear_ring()
        return reaches

    def give_up(self) -> None:
        """Forget what is on its way and what arrived: a snapshot takes its place."""
        self.underway = []
        self.acked = self.n
        self._clear_ring()

    def _clear_ring(self) -> None:
        self._ring.clear()
        self._ring_bytes = 0
