"""How often a run's stream is read.

At the base interval after an event and for `hold` more (a model's first token comes a moment after `metadata`, and one
XREAD serves all tails that are due); then doubling while empty up to `busy_max`; up to `idle_max` once nothing came for
`idle_after`; times uniform(1 - jitter, 1 + jitter); never past the next probe. Due times fall on a common grid, coarser
for longer intervals, so that tails that are due at about the same time are read together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

TICKS_PER_BASE = 2
"""The grid's step is half the base interval: jittered base intervals (0.8 to 1.2) then meet on one step."""

STEPS_PER_INTERVAL = 4
"""A longer interval has at least that many grid steps: coarse enough to share reads, finer than the jitter."""


@dataclass(frozen=True, slots=True)
class PaceFigures:
    """Figures of `[relay]` in the budget file, in seconds."""

    base: float
    hold: float
    busy_max: float
    idle_after: float
    idle_max: float
    jitter: float

    @classmethod
    def of(cls, relay: Mapping[str, Any]) -> PaceFigures:
        """Take them from the budget's table."""
        return cls(
            base=relay["base_interval_seconds"],
            hold=relay["hold_seconds"],
            busy_max=relay["busy_max_interval_seconds"],
            idle_after=relay["idle_after_seconds"],
            idle_max=relay["idle_max_interval_seconds"],
            jitter=relay["jitter"],
        )

    def step(self, interval: float) -> float:
        """Return the grid's step for an interval; steps are powers of two of the finest, so that their grids meet."""
        doublings = int(math.log2(max(1.0, interval * TICKS_PER_BASE / (self.base * STEPS_PER_INTERVAL))))
        return self.base / TICKS_PER_BASE * (1 << doublings)


class Pace:
    """The reading interval of one tail."""

    __slots__ = ("_figures", "_last_event_at", "_uniform", "interval")

    def __init__(
        self, figures: PaceFigures, now: float, *, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._figures = figures
        self._uniform = uniform
        self._last_event_at = now
        self.interval = figures.base
        """Seconds, before jitter."""

    def saw_events(self, now: float) -> None:
        """Note that a read brought events: back to the base interval."""
        self._last_event_at = now
        self.interval = self._figures.base

    def saw_nothing(self, now: float) -> None:
        """Note that a read brought nothing: after the hold, twice the interval, up to the ceiling."""
        if now - self._last_event_at < self._figures.hold:
            return
        idle = now - self._last_event_at >= self._figures.idle_after
        self.interval = min(self.interval * 2, self._figures.idle_max if idle else self._figures.busy_max)

    def idle_seconds(self, now: float) -> float:
        """Return for how long nothing came."""
        return now - self._last_event_at

    def next_due(self, now: float, *, probe_due: float) -> float:
        """Return when to read next: jittered, on the grid, later than now, and not past the next probe."""
        jitter, step = self._figures.jitter, self._figures.step(self.interval)
        wished = now + self.interval * self._uniform(1 - jitter, 1 + jitter)
        on_grid = round(wished / step) * step
        if on_grid > now + self.interval * (1 + jitter):
            on_grid -= step
        return min(on_grid, max(probe_due, now))


def next_on_grid(now: float, period: float) -> float:
    """Return the next multiple of `period` after now: what is due each period is due together."""
    due = (now // period + 1) * period
    return due if due > now else due + period
