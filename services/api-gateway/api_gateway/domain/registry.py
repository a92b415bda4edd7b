"""The register of open event streams.

Invariant: a stream is counted from before its first call to another service until its last byte, and every one of them
can be told to break: by its key's end, or because this process stops.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace_kit.errors import ResourceExhausted, Unavailable

from api_gateway.domain.keys import Principal

RETRY_AFTER_SECONDS = 5.0
"""Told with 429: streams end when tabs close, which takes seconds."""


@dataclass(eq=False, slots=True)
class OpenStream:
    """One stream's place. `broken` is resolved with a reason when the stream must break its connection."""

    principal: Principal
    broken: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def break_off(self, reason: str) -> None:
        """Ask the stream to break; the first reason stands."""
        if not self.broken.done():
            self.broken.set_result(reason)


class StreamRegistry:
    """Counts streams per user and in all, and breaks them."""

    def __init__(self, *, per_user: int, per_replica: int) -> None:
        self._per_user = per_user
        self._per_replica = per_replica
        self._streams: set[OpenStream] = set()
        self._by_user: Counter[str] = Counter()
        self.closing = asyncio.Event()
        """Set once the process stops: nothing long may begin or go on."""

    @property
    def count(self) -> int:
        """Streams open now."""
        return len(self._streams)

    @contextmanager
    def open(self, principal: Principal) -> Iterator[OpenStream]:
        """Hold a place for one stream.

        Raises ResourceExhausted when the user or the replica has no place left, Unavailable while stopping.
        """
        if self.closing.is_set():
            raise Unavailable("this replica is stopping", reason="STOPPING", retry_after_seconds=1.0)
        if len(self._streams) >= self._per_replica:
            raise self._full("replica", self._per_replica)
        if self._by_user[principal.uid] >= self._per_user:
            raise self._full("user", self._per_user)
        stream = OpenStream(principal)
        self._streams.add(stream)
        self._by_user[principal.uid] += 1
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            self._by_user[principal.uid] -= 1
            if self._by_user[principal.uid] <= 0:
                del self._by_user[principal.uid]

    @staticmethod
    def _full(scope: str, limit: int) -> ResourceExhausted:
        return ResourceExhausted(
            f"{limit} event streams are open, the limit of this {scope}",
            reason="TOO_MANY_STREAMS",
            metadata={"scope": scope, "limit": str(limit)},
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )

    def key_ids(self) -> set[str]:
        """Return the keys that hold streams."""
        return {stream.principal.key_id for stream in self._streams}

    def break_keys(self, key_ids: Collection[str], reason: str) -> None:
        """Break the streams of these keys."""
        for stream in self._streams:
            if stream.principal.key_id in key_ids:
                stream.break_off(reason)

    def close(self) -> None:
        """Break every stream and let none begin: the process stops."""
        self.closing.set()
        for stream in self._streams:
            stream.break_off("stopping")
