"""Following a stream across broken connections, without the network: what to send, what to accept, when to give up.

Invariant: ids only grow, so an event is never yielded twice, and only `end` (or the server's 204) ends a stream. A
connection that closes cleanly before it was merely cut politely.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace_client.calls import delay
from headrace_client.errors import BadRequest, HeadraceError, RateLimited, ServerError, StreamCorrupt, StreamLost
from headrace_client.sse import Frame

OUTAGE_SECONDS = 60.0
"""How long a stream may be away in one piece before the caller is told; the server's own bound is the same."""
SILENCE_SECONDS = 15.0
"""Three of the server's heartbeats (5 s each); then the connection counts as dead."""
HEALTHY_SECONDS = 5.0
"""A connection that lived this long has ended the outage, even if the run had nothing to tell."""
_EVENT_ID = re.compile(r"([0-9]{1,10})-([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run. `id` is None for those that have no place in the run (`queue`, `reset`)."""

    id: str | None
    event: str
    data: Any


class Following:
    """The state of one followed stream. `last_id` is the place to resume from."""

    def __init__(
        self,
        *,
        after: str | None,
        outage_seconds: float = OUTAGE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last_id = after
        self.ended = False
        self._outage_seconds = outage_seconds
        self._clock = clock
        self._order: tuple[int, int] | None = None if after is None else cursor(after)
        self._away_since: float | None = clock()
        self._opened_at: float | None = None
        self._failures = 0

    def headers(self) -> dict[str, str]:
        """Return the headers of the next connection."""
        base = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-store"}
        return base | ({"Last-Event-ID": self.last_id} if self.last_id else {})

    def opened(self) -> None:
        """Take note that a connection is up."""
        self._opened_at = self._clock()

    def accept(self, frame: Frame) -> Event:
        """Return the event of a frame and remember its place.

        Raises StreamCorrupt for an id that does not come after the last one, and for data that is not JSON.
        """
        try:
            event = Event(frame.id, frame.event, json.loads(frame.data))
        except ValueError:
            raise StreamCorrupt(f"event {frame.id} ({frame.event}) is not JSON", reason="NOT_JSON") from None
        if frame.event == "reset":
            self._order = None  # the server says that the order begins anew
        elif frame.id is not None:
            place = _parsed(frame.id)
            if self._order is not None and place <= self._order:
                told = f"event {frame.id} came after {self.last_id}"
                raise StreamCorrupt(told, reason="ID_REPEATED", metadata={"id": frame.id, "after": self.last_id})
            self._order, self.last_id = place, frame.id
        self._away_since, self._failures = None, 0
        self.ended = frame.event == "end"
        return event

    def next_delay(self, problem: Exception | str) -> float:
        """Return the seconds before the next connection after one that failed or closed.

        Raises `problem` itself when trying again cannot help, StreamLost when the outage passed its bound.
        """
        retry_after = 0.0
        if isinstance(problem, HeadraceError):
            if not isinstance(problem, RateLimited | ServerError):
                raise problem
            retry_after = problem.retry_after_seconds or 0.0
        now = self._clock()
        if self._opened_at is not None and now - self._opened_at >= HEALTHY_SECONDS:
            self._away_since, self._failures = None, 0
        self._opened_at = None
        if self._away_since is None:
            self._away_since = now
        self._failures += 1
        wait = max(retry_after, delay(self._failures))
        if now + wait - self._away_since > self._outage_seconds:
            told = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
            raise StreamLost(
                f"the stream was away for {now - self._away_since:.0f} s: {told}", last_event_id=self.last_id
            )
        return wait


def cursor(after: str) -> tuple[int, int]:
    """Return the place that a caller's cursor names.

    Raises BadRequest for what is no event's id: the caller's mistake, where the same from a server is StreamCorrupt.
    """
    place = _place(after)
    if place is None:
        raise BadRequest(
            f"{after[:64]!r} is not the id of an event, <attempt>-<n> with both from 1, as 1-17",
            reason="CURSOR_MALFORMED",
            field="after",
        )
    return place


def _parsed(event_id: str) -> tuple[int, int]:
    place = _place(event_id)
    if place is None:
        raise StreamCorrupt(f"event id {event_id[:64]!r} is not <attempt>-<n>", reason="BAD_EVENT_ID")
    return place


def _place(event_id: str) -> tuple[int, int] | None:
    match = _EVENT_ID.fullmatch(event_id)
    place = (int(match[1]), int(match[2])) if match else (0, 0)
    return place if min(place) > 0 else None
