"""Server-sent events from bytes, by the WHATWG rules for event streams; an event cut by the stream's end is none."""

from __future__ import annotations

from dataclasses import dataclass

EVENT_MAX_BYTES = 16 * 1024 * 1024
"""More than any event of ours (1 MiB) and a bound for what a broken server may make us hold."""


class EventTooLarge(ValueError):
    """An event passes the bound."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it stood on the wire; `id` is None when it carried none."""

    id: str | None
    event: str
    data: str


class SseParser:
    """Turns the pieces of a stream into frames. One parser per connection."""

    def __init__(self) -> None:
        self._rest = b""
        self._skip_lf = False
        self._id: str | None = None
        self._event = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[Frame]:
        """Return the frames that this piece completes.

        Raises EventTooLarge for an event over the bound.
        """
        if self._skip_lf and piece:
            piece = piece.removeprefix(b"\n")
            self._skip_lf = False
        lines = (self._rest + piece).splitlines(keepends=True)
        self._rest = b""
        if lines and not lines[-1].endswith((b"\n", b"\r")):
            self._rest = lines.pop()
        elif lines and lines[-1].endswith(b"\r"):
            self._skip_lf = True  # the LF of a CRLF may come with the next piece
        frames = []
        for line in lines:
            frame = self._line(line.rstrip(b"\r\n"))
            if frame is not None:
                frames.append(frame)
        if self._size + len(self._rest) > EVENT_MAX_BYTES:
            raise EventTooLarge(f"an event is larger than {EVENT_MAX_BYTES} bytes")
        return frames

    def _line(self, line: bytes) -> Frame | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value.decode("utf-8", "replace"))
            self._size += len(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> Frame | None:
        frame = Frame(self._id, self._event or "message", "\n".join(self._data)) if self._data else None
        self._id, self._event, self._data, self._size = None, "", [], 0
        return frame
