"""Whether this process has been in touch with PostgreSQL long enough to judge others by their leases.

Invariant: nobody is taken for dead by a lease that may have run out only because PostgreSQL, or we, were away.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Contact:
    """An unbroken row of answers from PostgreSQL; a gap of half a TTL begins it anew."""

    def __init__(self, *, ttl_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._since: float | None = None
        self._last = 0.0

    def answered(self) -> None:
        """PostgreSQL has just answered."""
        now = self._clock()
        if self._since is None or now - self._last > self._ttl_seconds / 2:
            self._since = now
        self._last = now

    def failed(self) -> None:
        """PostgreSQL has just not answered."""
        self._since = None

    @property
    def settled(self) -> bool:
        """Whether the row has lasted one whole TTL, up to now."""
        now = self._clock()
        return (
            self._since is not None
            and now - self._last <= self._ttl_seconds / 2
            and now - self._since >= self._ttl_seconds
        )
