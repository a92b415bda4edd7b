"""Runs' streams in Redis: plain reads, never blocking, never Pub/Sub, on a number of connections that is fixed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headrace_contract.projection import FIELD_DATA, FIELD_EVENT, EventId, EventName
from headrace_kit.redis import AWAY_ERRORS
from redis.asyncio import Redis

from event_relay.domain.entry import Entry
from event_relay.domain.ports import Anchor
from event_relay.errors import RedisAway

PAGES_AT_ONCE = 4
"""Viewers that catch up share this many connections, so that they never stand in the way of the tails' one read."""

_NAMES = {name.value.encode(): name.value for name in EventName}


def _id_of(raw: bytes) -> EventId:
    # Not EventId.parse: a foreign entry with an odd id must not stop the reading of all other runs.
    attempt, _, n = raw.partition(b"-")
    return EventId(int(attempt), int(n))


def _entries(raw: Any) -> list[Entry]:
    entries = []
    for at, fields in raw or ():
        name = fields.get(FIELD_EVENT, b"")
        event = _NAMES.get(name) or name.decode("utf-8", "replace")
        entries.append(Entry(_id_of(at), event, fields.get(FIELD_DATA, b"null")))
    return entries


def _pairs(answer: Any) -> list[tuple[bytes, Any]]:
    """Return key and entries of each stream in an XREAD answer, in either protocol's shape."""
    if isinstance(answer, dict):
        return [(key, raw[0] if raw and isinstance(raw[0], list) else raw) for key, raw in answer.items()]
    return [(key, raw) for key, raw in answer or ()]


class RedisStreams:
    """The Streams port. All keys of one `read` or `missing` call must be of one shard."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._pages = asyncio.Semaphore(PAGES_AT_ONCE)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Redis]:
        try:
            yield self._redis
        except AWAY_ERRORS as error:
            raise RedisAway(type(error).__name__) from error

    async def read(self, places: Mapping[str, EventId], count: int) -> dict[str, list[Entry]]:
        """See Streams: one XREAD without BLOCK."""
        async with self._reading() as redis:
            answer = await redis.xread({key: str(at) for key, at in places.items()}, count=count)
        # Keys come back as bytes, and the order of the answer is the server's.
        by_name = {key.encode(): key for key in places}
        return {by_name[key]: _entries(raw) for key, raw in _pairs(answer)}

    async def page(self, key: str, after: EventId, count: int, *, inclusive: bool = False) -> list[Entry]:
        """See Streams: one XRANGE."""
        async with self._pages, self._reading() as redis:
            return _entries(await redis.xrange(key, min=str(after) if inclusive else f"({after}", count=count))

    async def anchor(self, key: str, count: int) -> Anchor | None:
        """See Streams. Snapshots are at most 1,000 events apart, so this ends soon."""
        async with self._pages, self._reading() as redis:
            oldest = _entries(await redis.xrange(key, count=1))
            if not oldest:
                return None
            first = oldest[0]
            begins_whole = first.event in (EventName.METADATA, EventName.SNAPSHOT)
            upper = "+"
            while True:
                page = _entries(await redis.xrevrange(key, max=upper, count=count))
                for entry in page:
                    if entry.event == EventName.SNAPSHOT:
                        return Anchor(first.at, entry.at, begins_whole)
                if len(page) < count:
                    return Anchor(first.at, None, begins_whole)
                upper = f"({page[-1].at}"

    async def ping(self) -> None:
        """See Streams."""
        async with self._reading() as redis:
            await redis.exists("headrace")

    async def last_ids(self, keys: Sequence[str]) -> list[EventId | None]:
        """See Streams: one pipeline of XREVRANGE COUNT 1."""
        async with self._reading() as redis:
            pipeline = redis.pipeline(transaction=False)
            for key in keys:
                pipeline.xrevrange(key, count=1)
            answers = await pipeline.execute()
        return [_id_of(raw[0][0]) if raw else None for raw in answers]

    async def missing(self, keys: Sequence[str]) -> set[str]:
        """See Streams: one EXISTS; one more round trip only when it counts too few."""
        async with self._reading() as redis:
            if await redis.exists(*keys) == len(keys):
                return set()
            pipeline = redis.pipeline(transaction=False)
            for key in keys:
                pipeline.exists(key)
            found = await pipeline.execute()
        return {key for key, exists in zip(keys, found, strict=True) if not exists}
