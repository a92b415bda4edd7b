"""The ports of the relay: what reading a tail means, and the two stores as the rest of the relay sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from headrace_contract.projection import EventId

from event_relay.domain.entry import Entry
from event_relay.domain.outcome import Outcome


class TailStrategy(Protocol):
    """A way to read the live tails of a book. Every one of them passes the same conformance suite.

    It extends each live tail with what its stream holds behind `position`, whole reads in order; calls `lose` for a
    stream that is gone or was set back; survives any absence of Redis and notes it in the book's outage; and uses a
    number of connections that does not depend on runs or viewers.
    """

    async def run(self) -> None:
        """Read until cancelled."""


class Anchor(NamedTuple):
    """Where a viewer without a past can begin in a stream."""

    first: EventId
    """The oldest entry."""
    snapshot: EventId | None
    """The newest snapshot."""
    begins_whole: bool
    """The oldest entry is a `metadata` or `snapshot`: a beginning is a whole picture."""


class Streams(Protocol):
    """Reading runs' streams. Every method raises RedisAway when Redis is."""

    async def read(self, places: Mapping[str, EventId], count: int) -> dict[str, list[Entry]]:
        """Return what each key holds behind its place, at most `count` each; keys with nothing are absent."""

    async def page(self, key: str, after: EventId, count: int, *, inclusive: bool = False) -> list[Entry]:
        """Return at most `count` entries behind `after` (or from it on)."""

    async def anchor(self, key: str, count: int) -> Anchor | None:
        """Return where to begin, looking back `count` entries at a time; None when the stream is empty or gone."""

    async def ping(self) -> None:
        """Do nothing, if Redis answers."""

    async def last_ids(self, keys: Sequence[str]) -> list[EventId | None]:
        """Return each stream's newest id, None for one that is gone."""

    async def missing(self, keys: Sequence[str]) -> set[str]:
        """Return the keys that do not exist."""


class Runs(Protocol):
    """What PostgreSQL says of runs. Every method raises the kit's Unavailable or ResourceExhausted when it cannot."""

    async def open(self, run_id: UUID, uid: str) -> Outcome | None:
        """Return a run's outcome if `uid` may see it, None otherwise."""

    async def outcomes(self, run_ids: Sequence[UUID]) -> dict[UUID, Outcome]:
        """Return the outcomes of many runs; those that are gone are absent."""

    async def snapshot(self, run_id: UUID) -> bytes:
        """Return the JSON of a `snapshot` event made of what the run has stored."""
