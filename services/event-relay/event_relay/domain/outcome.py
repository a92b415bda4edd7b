"""What PostgreSQL says of a run, and how its end is told from that when the stream does not hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace_contract.projection import EventId


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of view run_outcome, as of one probe."""

    state: str
    """queued, pending, running, or how it ended."""
    deleted: bool
    terminal: bool
    fenced: bool
    """Clean-up is pending: the end is not told yet."""
    settled_seconds: float | None
    """Age of the end and of the cleared fence, whichever is younger; None before the end."""
    result_id: EventId | None
    end_id: EventId | None
    result: bytes | None
    """JSON of the `result` event."""
    queue: bytes | None
    """JSON of the `queue` event while the run waits; None also while a pending run is on its way to its claim."""

    @property
    def waiting(self) -> bool:
        """Return whether the run has yet to start: the reason for which it waits may come or change."""
        return self.queue is not None or self.state == "pending"

    @property
    def over(self) -> bool:
        """Return whether the end may be told once it has settled."""
        return self.terminal and not self.fenced and not self.deleted

    def settled(self, settle_seconds: float) -> bool:
        """Return whether the end is old enough to be told from here: its owner appends it in the meantime."""
        return self.over and self.settled_seconds is not None and self.settled_seconds >= settle_seconds


DELETED = Outcome(
    state="deleted",
    deleted=True,
    terminal=True,
    fenced=False,
    settled_seconds=None,
    result_id=None,
    end_id=None,
    result=None,
    queue=None,
)
"""What a run is whose row is gone."""


class Ending(NamedTuple):
    """Which events are told before `end`."""

    reset: bool
    snapshot: bool
    result: bool


def ending(last: EventId | None, result_id: EventId) -> Ending:
    """Return what a viewer at `last` needs to be told beside `end`.

    Synthesized events keep the rule of continuity: one whose last event is right before `result` has had the output,
    one without a past needs no reset, every other one is told that its picture is replaced.
    """
    if last is None:
        return Ending(reset=False, snapshot=True, result=True)
    if last >= result_id:
        return Ending(reset=False, snapshot=False, result=False)
    if last.attempt == result_id.attempt and last.n + 1 == result_id.n:
        return Ending(reset=False, snapshot=False, result=True)
    return Ending(reset=True, snapshot=True, result=True)
