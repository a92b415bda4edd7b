"""Continuity of what one viewer is shown.

Invariant: between two events that pass there is no hole, unless the viewer was told of it by a `reset` in between.
Inside an attempt n counts 1, 2, 3, ...; an attempt begins at n = 1; a viewer without a past may begin at `metadata` or
at a `snapshot`, because both stand for a whole picture.
"""

from __future__ import annotations

from headrace_contract.projection import EventId, EventName

from event_relay.domain.entry import BEGINNING


def follows(last: EventId, at: EventId) -> bool:
    """Return whether `at` is the next event after `last`: the next n, or the first of a later attempt."""
    if at.attempt == last.attempt:
        return at.n == last.n + 1
    return at.attempt > last.attempt and at.n == 1


class Continuity:
    """Judges each event before any filtering. Starts at `last`, the viewer's cursor, or without a past."""

    __slots__ = ("_anchored", "_told", "last")

    def __init__(self, last: EventId | None) -> None:
        self.last = last
        """The newest event that passed; None when the viewer has nothing (yet, or any more)."""
        self._anchored = True
        self._told = BEGINNING

    def passes(self, at: EventId, event: str) -> bool:
        """Return whether the event may be shown next, and step onto it; False is a hole and changes nothing."""
        if self.last is None:
            begins = event == EventName.SNAPSHOT or (event == EventName.METADATA and at.n == 1)
            if not begins and self._anchored and at > self._told:
                return False
        elif not follows(self.last, at) and at > self._told:
            return False
        self.last = at
        return True

    def restart(self, *, anchored: bool, told: EventId | None = None) -> None:
        """Begin again after a `reset`.

        `anchored` says that the stream holds a place to begin at; without one it is shown as it is. Holes up to `told`,
        the event behind the hole that caused the reset, have been told and pass: no reset loops.
        """
        self.last = None
        self._anchored = anchored
        if told is not None and told > self._told:
            self._told = told
