"""Server-sent events, parsed from bytes as they come; an event may be cut anywhere, even inside a character."""

from __future__ import annotations


class EventTooLarge(Exception):
    """The provider sent more bytes than an event may have, and no end of it."""


class EventParser:
    """Collects the data of complete events; comments and fields other than `data` are dropped."""

    def __init__(self, *, event_bytes_max: int) -> None:
        self._limit = event_bytes_max
        self._rest = b""
        self._carriage_return = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of each event that `chunk` completes; empty ones are left out."""
        if self._carriage_return or b"\r" in chunk:
            chunk = self._with_plain_newlines(chunk)
        if self._rest:
            chunk = self._rest + chunk
        end = chunk.rfind(b"\n\n")
        if end < 0:
            self._keep(chunk)
            return []
        self._keep(chunk[end + 2 :])
        return _data_of(chunk[:end])

    def finish(self) -> list[bytes]:
        """Return what an end of the stream without a last empty line leaves."""
        rest, self._rest = self._rest, b""
        return _data_of(rest)

    def _keep(self, rest: bytes) -> None:
        if len(rest) > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")
        self._rest = rest

    def _with_plain_newlines(self, chunk: bytes) -> bytes:
        if self._carriage_return:
            chunk = b"\r" + chunk
        # A CR at the end may be the first half of a CRLF.
        self._carriage_return = chunk.endswith(b"\r")
        if self._carriage_return:
            chunk = chunk[:-1]
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data_of(block: bytes) -> list[bytes]:
    found = []
    for event in block.split(b"\n\n"):
        if event.startswith(b"data: ") and b"\n" not in event:
            found.append(event[6:])
            continue
        lines = [_value(line) for line in event.split(b"\n") if line == b"data" or line.startswith(b"data:")]
        if lines and (data := b"\n".join(lines)):
            found.append(data)
    return found


def _value(line: bytes) -> bytes:
    value = line[5:]
    return value[1:] if value.startswith(b" ") else value
