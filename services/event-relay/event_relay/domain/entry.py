"""An entry of a run's stream as the relay handles it: bytes are passed on, never decoded."""

from __future__ import annotations

from typing import NamedTuple

from headrace_contract.projection import EventId

BEGINNING = EventId(0, 0)
"""The place before every event; not an event's id, so never told to anybody."""


class Entry(NamedTuple):
    """One stored event."""

    at: EventId
    event: str
    data: bytes
    """JSON, encoded once by its producer."""


def size_of(entries: list[Entry]) -> int:
    """Return the bytes that entries carry."""
    return sum(len(entry.data) for entry in entries)


def before(at: EventId) -> EventId:
    """Return the place from which reading on gives `at` first."""
    return EventId(at.attempt, at.n - 1) if at.n > 0 else BEGINNING


def parse_after(text: str) -> EventId:
    """Return the place that a cursor names, BEGINNING for the empty one.

    Raises ValueError when no event can have that id.
    """
    if not text:
        return BEGINNING
    at = EventId.parse(text)
    if at.attempt < 1 or at.n < 1:
        raise ValueError(f"event id {text!r} counts from 1 on both sides")
    return at
