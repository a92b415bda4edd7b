"""Frames of server-sent events."""

from __future__ import annotations

import orjson
from api_gateway.domain.frames import frame, frames
from headrace.relay.v1.relay_service_pb2 import Event
from hypothesis import given
from hypothesis import strategies as st

_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(st.lists(st.tuples(st.sampled_from(["", "1-1", "7-123"]), st.sampled_from(["messages", "end"]), _JSON)))
def test_a_parser_reads_what_was_framed(events: list[tuple[str, str, object]]) -> None:
    """
    1. Events of any JSON (U+2028, controls, emoji) are framed as one piece.
    2. Reading the piece by the rules of the standard gives the same ids, names and values.
    """
    piece = frames(Event(id=i, event=e, data=orjson.dumps(value)) for i, e, value in events)
    parts = piece.split(b"\n\n")
    assert parts.pop() == b""
    read = []
    for part in parts:
        fields = dict(line.split(b": ", 1) for line in part.split(b"\n"))
        read.append((fields.get(b"id", b"").decode(), fields[b"event"].decode(), orjson.loads(fields[b"data"])))
    assert read == [(i, e, orjson.loads(orjson.dumps(value))) for i, e, value in events]


def test_line_ends_cannot_leave_the_data() -> None:
    """
    1. A producer's JSON is pretty-printed, with both kinds of line end.
    2. It stays one frame with one data line, and the same JSON.
    """
    made = frame("custom", b'{\r\n "a": [\n1]\r}', "1-2")
    assert made.count(b"\n") == 4
    assert orjson.loads(made.split(b"data: ")[1]) == {"a": [1]}
