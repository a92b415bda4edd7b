"""Server-sent events as bytes. Data is JSON that its producer encoded; it is framed here, never decoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

HEARTBEAT = b": heartbeat\n\n"
"""A comment: proxies see traffic, clients ignore it."""


class EventLike(Protocol):
    """What a frame is made of; the relay's Event message is one."""

    @property
    def id(self) -> str:
        """Place in the run's stream, or empty."""

    @property
    def event(self) -> str:
        """Name."""

    @property
    def data(self) -> bytes:
        """JSON."""


def frame(event: str, data: bytes, event_id: str = "") -> bytes:
    """Return one frame. Without an id there is no `id:` line, so that a client's cursor stays where it is."""
    if b"\n" in data or b"\r" in data:
        # JSON has line ends only between its tokens, where a space says the same and cannot end a frame.
        data = data.replace(b"\r", b" ").replace(b"\n", b" ")
    if event_id:
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (event_id.encode(), event.encode(), data)
    return b"event: %b\ndata: %b\n\n" % (event.encode(), data)


def frames(events: Iterable[EventLike]) -> bytes:
    """Return the frames of a batch as one piece."""
    return b"".join([frame(each.event, each.data, each.id) for each in events])
