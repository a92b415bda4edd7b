"""Reads the sockets of all streaming answers together: one wake-up a window, not one a token and stream.

Invariant: a paused socket is always resumed within `WINDOW_MAX_SECONDS`; nothing is lost or reordered meanwhile, it
waits in the kernel, and the end of an answer or of its connection is noticed at most that much later.
"""

from __future__ import annotations

import asyncio
from typing import Final

WINDOW_SECONDS: Final = 0.025
"""How long a token waits here when few answers stream; an answer's first piece never waits."""
STREAMS_PER_WINDOW: Final = 10
"""So many streaming answers lengthen the window by one more: what a token costs falls as there are more of them."""
WINDOW_MAX_SECONDS: Final = 0.1
"""Text that comes ten times a second still reads as flowing."""


class ReadPacer:
    """Pauses the transports of one event loop and resumes all of them at one moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_later = loop.call_later
        self._paused: list[asyncio.ReadTransport] = []
        self._window_seconds = WINDOW_SECONDS

    def pause(self, transport: asyncio.ReadTransport) -> None:
        """Read nothing from `transport` until the window closes."""
        if transport.is_closing():
            return
        transport.pause_reading()
        if not self._paused:
            self._call_later(self._window_seconds, self._resume)
        self._paused.append(transport)

    def _resume(self) -> None:
        paused, self._paused = self._paused, []
        stretched = WINDOW_SECONDS * (1 + len(paused) / STREAMS_PER_WINDOW)
        self._window_seconds = min(WINDOW_MAX_SECONDS, stretched)
        for transport in paused:
            if not transport.is_closing():
                transport.resume_reading()
