"""Events are the same however their bytes are cut."""

from __future__ import annotations

import pytest
from headrace_agent.sse import EventParser, EventTooLarge
from hypothesis import given
from hypothesis import strategies as st


def parsed(*chunks: bytes, limit: int = 1_000_000) -> list[bytes]:
    parser = EventParser(event_bytes_max=limit)
    return [data for chunk in chunks for data in parser.feed(chunk)] + parser.finish()


TEXTS = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1), max_size=5)


@given(TEXTS, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 200), max_size=6), st.booleans())
def test_any_cut_gives_the_same_events(texts: list[str], newline: bytes, cuts: list[int], comments: bool) -> None:
    """1. Events with any text and any newline are cut anywhere. 2. Their data comes back whole and in order."""
    extra = b": ping" + newline * 2 if comments else b""
    body = b"".join(extra + b"data: " + text.encode() + newline * 2 for text in texts)
    at = sorted(min(cut, len(body)) for cut in cuts)
    chunks = [body[begin:end] for begin, end in zip([0, *at], [*at, len(body)], strict=True)]

    assert parsed(*chunks) == [text.encode() for text in texts]


def test_fields_comments_and_several_lines_of_data() -> None:
    """1. Events carry ids, comments, data without a space, and data of two lines. 2. Only the data is left."""
    body = b"id: 1\nevent: x\ndata:a\n\n: note\n\n\ndata: b\ndata: c\n\ndata\n\ndataset: no\n\n"

    assert parsed(body) == [b"a", b"b\nc"]


def test_an_end_without_an_empty_line_still_counts() -> None:
    """1. The stream ends after a line of data. 2. The event is there."""
    assert parsed(b"data: a\n\nda", b"ta: [DONE]") == [b"a", b"[DONE]"]


def test_an_event_without_end_is_bounded() -> None:
    """1. Bytes come and no event ends. 2. The parser gives up instead of growing."""
    with pytest.raises(EventTooLarge):
        parsed(b"data: ", b"x" * 60, b"x" * 60, limit=100)
