"""How long a store has been away, and when streams stop waiting for it."""

from __future__ import annotations


class Outage:
    """Of one store. Streams stay open through an outage; only one longer than `limit_seconds` ends them."""

    __slots__ = ("_since", "limit_seconds", "store", "unverified")

    def __init__(self, store: str, *, limit_seconds: float) -> None:
        self.store = store
        self.limit_seconds = limit_seconds
        self._since: float | None = None
        self.unverified = False
        """It was away since somebody last compared what it holds with what was read from it."""

    @property
    def lasting(self) -> bool:
        """Return whether the last attempt failed."""
        return self._since is not None

    def failed(self, now: float) -> bool:
        """Note a failed attempt; return whether it is the first."""
        self.unverified = True
        if self._since is not None:
            return False
        self._since = now
        return True

    def recovered(self) -> bool:
        """Note an attempt that succeeded; return whether it is the first after failed ones."""
        first, self._since = self._since is not None, None
        return first

    def exceeded(self, now: float) -> bool:
        """Return whether it lasts longer than a stream waits."""
        return self._since is not None and now - self._since > self.limit_seconds
