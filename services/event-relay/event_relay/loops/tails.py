"""The tail strategy `poll`: all tails that are due are read by one non-blocking XREAD per tick and shard.

It means the same as one XRANGE per run and costs 6 to 7 times less (research: 100 keys 0.2 ms, 1,000 keys 2 ms).
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import structlog
from headrace_contract.projection import shard_of

from event_relay.domain.book import TailBook
from event_relay.domain.ports import Streams
from event_relay.domain.tail import Tail
from event_relay.errors import RedisAway

RETRY_SECONDS = (0.1, 0.5)
"""Between tries while Redis is away; short, because every viewer waits for the first that succeeds."""

log = structlog.get_logger("event_relay.tails")


class PollingTails:
    """See the module and TailStrategy."""

    def __init__(self, book: TailBook, streams: Streams, *, relay: Mapping[str, Any], shards: int) -> None:
        self._book = book
        self._streams = streams
        self._count: int = relay["read_count"]
        self._check_seconds: float = relay["probe_seconds"]
        self._shards = shards
        self._check_due = 0.0

    async def run(self) -> None:
        """Read until cancelled."""
        book = self._book
        while True:
            book.reads_changed.clear()
            now = book.clock()
            due = book.take_due(now)
            if due or book.redis.lasting:
                await self._read(due)
            if now >= self._check_due:
                self._check_due = now + self._check_seconds
                await self._check_idle()
            wait = min(book.next_due(), self._check_due) - book.clock()
            if wait > 0:
                await _wait(book.reads_changed, wait)

    def _by_shard(self, tails: Iterable[Tail]) -> list[list[Tail]]:
        groups: dict[int, list[Tail]] = defaultdict(list)
        for tail in tails:
            groups[shard_of(str(tail.run_id), self._shards) if self._shards > 1 else 0].append(tail)
        return list(groups.values())

    async def _read(self, due: list[Tail]) -> None:
        try:
            if self._book.redis.unverified:
                await self._check_places()
            for tails in self._by_shard(due):
                await self._read_shard(tails)
        except RedisAway as error:
            await self._away(due, error)
        else:
            if self._book.redis.recovered():
                log.info("redis is back")

    async def _read_shard(self, tails: list[Tail]) -> None:
        asked = {tail.key: tail.position for tail in tails}
        found = await self._streams.read(asked, self._count)
        now = self._book.clock()
        for tail in tails:
            entries = found.get(tail.key)
            if not tail.live:
                continue
            if tail.position != asked[tail.key]:  # lost while the read was on its way
                self._book.schedule(tail, now)
                continue
            if entries is None:
                tail.pace.saw_nothing(now)
            else:
                tail.pace.saw_events(now)
                tail.extend(entries)
            full = entries is not None and len(entries) >= self._count
            self._book.schedule(tail, now if full else tail.pace.next_due(now, probe_due=tail.probe_due))

    async def _check_idle(self) -> None:
        """Look whether streams that bring nothing are still there: an empty read does not tell."""
        try:
            for tails in self._by_shard(self._book.idle_tails(self._check_seconds)):
                missing = await self._streams.missing([tail.key for tail in tails])
                for tail in tails:
                    if tail.key in missing:
                        self._lose(tail)
        except RedisAway as error:
            await self._away([], error)

    async def _check_places(self) -> None:
        """Compare last ids after an outage: a Redis that comes back may have forgotten everything, or the newest."""
        await self._streams.ping()
        known = self._book.idle_tails(0.0)
        if known:
            places = await self._streams.last_ids([tail.key for tail in known])
            for tail, last in zip(known, places, strict=True):
                if last is None or last < tail.position:
                    self._lose(tail)
        self._book.redis.unverified = False

    def _lose(self, tail: Tail) -> None:
        if tail.live:
            log.warning("stream lost", run_id=str(tail.run_id), position=str(tail.position))
            self._book.lose(tail)

    async def _away(self, due: list[Tail], error: RedisAway) -> None:
        now = self._book.clock()
        if self._book.redis.failed(now):
            log.warning("redis is away", error=str(error))
        pause = random.uniform(*RETRY_SECONDS)
        for tail in due:
            if tail.live:
                self._book.schedule(tail, now + pause)
        if self._book.redis.exceeded(now):
            self._book.wake_all()
        await asyncio.sleep(pause)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
