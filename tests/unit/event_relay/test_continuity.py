"""What passes, what is a hole, and that a reset happens once."""

from __future__ import annotations

import pytest
from event_relay.domain.continuity import Continuity, follows
from event_relay.domain.entry import BEGINNING, before, parse_after
from event_relay.domain.outcome import Ending, ending
from headrace_contract.projection import EventId
from hypothesis import given
from hypothesis import strategies as st

PLACES = st.builds(EventId, st.integers(1, 4), st.integers(1, 30))


def _whole(lengths: list[int]) -> list[tuple[EventId, str]]:
    """A stream without holes: an attempt for each length."""
    return [
        (EventId(attempt, n), "metadata" if n == 1 else "custom")
        for attempt, length in enumerate(lengths, start=1)
        for n in range(1, length + 1)
    ]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4), st.data())
def test_a_whole_stream_passes_from_every_place(lengths: list[int], data: st.DataObject) -> None:
    """1. A stream without holes. 2. From any of its places everything behind passes."""
    stream = _whole(lengths)
    start = data.draw(st.integers(0, len(stream)))
    place = Continuity(stream[start - 1][0] if start else None)
    assert all(place.passes(*entry) for entry in stream[start:])


@given(st.lists(st.integers(2, 8), min_size=1, max_size=4), st.data())
def test_a_missing_event_is_a_hole_and_told_once(lengths: list[int], data: st.DataObject) -> None:
    """1. Any event but the last of an attempt is missing. 2. The next one does not pass. 3. After a restart without a
    snapshot the whole rest passes, the told hole included.
    """
    stream = _whole(lengths)
    inner = [i for i in range(len(stream) - 1) if stream[i + 1][0].attempt == stream[i][0].attempt]
    missing = data.draw(st.sampled_from(inner))
    holed = stream[:missing] + stream[missing + 1 :]
    place = Continuity(None)
    verdicts = [place.passes(*entry) for entry in holed[: missing + 1]]
    assert verdicts == [True] * missing + [False]
    place.restart(anchored=missing > 0, told=holed[missing][0])
    assert all(place.passes(*entry) for entry in holed)


@given(PLACES, PLACES)
def test_a_hole_changes_nothing(last: EventId, at: EventId) -> None:
    """1. A place. 2. An event that does not follow it is refused, as often as it is asked. 3. The place is the same."""
    place = Continuity(last)
    if not follows(last, at):
        assert [place.passes(at, "custom"), place.passes(at, "snapshot")] == [False, False]
        assert place.last == last


@pytest.mark.parametrize(
    ("at", "event", "passes"),
    [
        (EventId(1, 1), "metadata", True),
        (EventId(3, 700), "snapshot", True),
        (EventId(1, 1), "custom", False),
        (EventId(2, 5), "metadata", False),
    ],
)
def test_without_a_past_only_a_whole_picture_begins(at: EventId, event: str, passes: bool) -> None:
    """1. A viewer has nothing. 2. Only the first metadata or a snapshot passes."""
    assert Continuity(None).passes(at, event) is passes


@given(PLACES)
def test_reading_from_before_a_place_gives_the_place_first(at: EventId) -> None:
    """1. Any place. 2. The one before it is smaller, with nothing between."""
    assert before(at) < at
    assert follows(before(at), at) or at.n == 1


@given(PLACES)
def test_cursors_come_back_as_they_were_told(at: EventId) -> None:
    """1. Any place as text. 2. Parsed, it is the same; the empty cursor is the beginning."""
    assert parse_after(str(at)) == at
    assert parse_after("") == BEGINNING


@pytest.mark.parametrize("text", ["0-0", "0-1", "1-0", "-1", "1", "1-1 ", "1-1-1", "a-b", "9999999999-1", "١-١"])
def test_malformed_cursors_are_refused(text: str) -> None:
    """1. Text that names no event. 2. ValueError."""
    with pytest.raises(ValueError, match="event id"):
        parse_after(text)


@given(st.none() | PLACES, PLACES)
def test_what_is_told_before_an_end_leaves_no_hole(last: EventId | None, result: EventId) -> None:
    """1. A viewer anywhere, an end anywhere. 2. It has, or is told, result; and either nothing is missing between, or
    a snapshot replaces it; one that had something else is told so by a reset.
    """
    plan = ending(last, result)
    assert plan.result == (last is None or last < result)
    if plan.result:
        contiguous = last is not None and last.attempt == result.attempt and last.n + 1 == result.n
        assert plan.snapshot == (not contiguous)
        assert plan.reset == (plan.snapshot and last is not None)
    else:
        assert plan == Ending(reset=False, snapshot=False, result=False)
