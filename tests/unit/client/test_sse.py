"""Server-sent events from bytes, however the network cuts them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from headrace_client.sse import EVENT_MAX_BYTES, EventTooLarge, Frame, SseParser
from hypothesis import given
from hypothesis import strategies as st

STREAM = (
    ": heartbeat\n\n"
    'id: 1-1\nevent: metadata\ndata: {"a":1}\n\n'
    "id: 1-2\r\nevent: messages\r\ndata: x 😀\u2028y\r\n\r\n"
    "data:no space\rdata: second\r\r"
    "event: alone\n\n"
    "id\ndata\n\n"
    "unknown: 1\ndata: z\n\n"
).encode()
FRAMES = [
    Frame("1-1", "metadata", '{"a":1}'),
    Frame("1-2", "messages", "x 😀\u2028y"),
    Frame(None, "message", "no space\nsecond"),
    Frame("", "message", ""),
    Frame(None, "message", "z"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_any_cut_gives_the_same_frames(cuts: list[int]) -> None:
    """
    1. a stream with all three line ends, comments, empty and unknown fields is cut anywhere
    2. the frames are the same
    """
    edges = [0, *sorted(cuts), len(STREAM)]
    parser = SseParser()
    found = [f for a, b in pairwise(edges) for f in parser.feed(STREAM[a:b])]
    assert found == FRAMES


def test_frame_comes_with_its_last_byte() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n\r") == [Frame(None, "message", "a")]
    assert parser.feed(b"\ndata: b\n\n") == [Frame(None, "message", "b")]


def test_cut_event_is_none() -> None:
    assert SseParser().feed(b"id: 1-1\ndata: half\n") == []


def test_endless_event_is_refused() -> None:
    """
    1. a broken server sends a line that never ends
    2. the parser gives up at its bound instead of holding it all
    """
    parser = SseParser()
    piece = b"x" * (EVENT_MAX_BYTES // 4)
    for _ in range(4):
        assert parser.feed(piece) == []
    with pytest.raises(EventTooLarge):
        parser.feed(piece)
