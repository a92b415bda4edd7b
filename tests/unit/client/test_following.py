"""Following a stream, by a clock that the test moves."""

from __future__ import annotations

import pytest
from headrace_client.errors import BadRequest, NotFound, RateLimited, ServerError, StreamCorrupt, StreamLost
from headrace_client.following import Following
from headrace_client.sse import Frame


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def frame(event_id: str | None, event: str = "custom", data: str = "{}") -> Frame:
    return Frame(event_id, event, data)


def test_resumes_behind_the_last_id() -> None:
    """
    1. events 1-1 and 1-2 were received, then one without an id
    2. the next connection asks for what is behind 1-2
    """
    following = Following(after=None)
    assert "Last-Event-ID" not in following.headers()
    for event_id in ("1-1", "1-2", None):
        following.accept(frame(event_id))
    assert following.headers()["Last-Event-ID"] == "1-2"


def test_ends_at_end_only() -> None:
    following = Following(after="1-7")
    following.accept(frame("1-8", "result"))
    assert not following.ended
    following.accept(frame("1-9", "end", '{"status":"completed"}'))
    assert following.ended


@pytest.mark.parametrize("doubled", ["1-2", "1-1"])
def test_doubled_id_is_an_error(doubled: str) -> None:
    following = Following(after=None)
    following.accept(frame("1-1"))
    following.accept(frame("1-2"))
    with pytest.raises(StreamCorrupt, match=f"{doubled} came after 1-2"):
        following.accept(frame(doubled))


def test_id_at_the_given_cursor_is_an_error() -> None:
    with pytest.raises(StreamCorrupt):
        Following(after="2-5").accept(frame("2-5"))


def test_ids_compare_as_numbers_over_attempts() -> None:
    following = Following(after=None)
    for event_id in ("1-9", "1-10", "2-1", "10-1"):
        following.accept(frame(event_id))


def test_order_begins_anew_after_reset() -> None:
    """
    1. the server cannot go on behind 3-7 and says so
    2. its newest snapshot, 2-9, is accepted, and is the new cursor
    """
    following = Following(after="3-7")
    following.accept(frame(None, "reset", '{"reason":"unknown_cursor"}'))
    assert following.headers()["Last-Event-ID"] == "3-7"
    following.accept(frame("2-9", "snapshot"))
    assert following.headers()["Last-Event-ID"] == "2-9"


@pytest.mark.parametrize("bad", [frame("7"), frame("x-1"), Frame("1-1", "custom", "{")])
def test_what_is_no_event_is_an_error(bad: Frame) -> None:
    with pytest.raises(StreamCorrupt):
        Following(after=None).accept(bad)


def test_back_off_grows_to_its_cap_and_an_event_resets_it() -> None:
    clock = Clock()
    following = Following(after=None, clock=clock)
    delays = [following.next_delay("closed") for _ in range(8)]
    assert 0.1 <= delays[0] <= 0.2
    assert 2.5 <= delays[-1] <= 5.0
    following.accept(frame("1-1"))
    assert following.next_delay("closed") <= 0.2


def test_one_outage_is_bounded_and_says_where_to_go_on() -> None:
    """
    1. a stream that delivered 1-4 stays away
    2. after 60 s the caller is told, with the place to go on from
    """
    clock = Clock()
    following = Following(after=None, clock=clock)
    following.accept(frame("1-4"))
    following.next_delay("closed")
    clock.now += 61
    with pytest.raises(StreamLost, match="61 s") as caught:
        following.next_delay(ConnectionError("refused"))
    assert caught.value.last_event_id == "1-4"


def test_many_short_outages_are_none() -> None:
    """
    1. for ten minutes a connection lives 6 s, silently, and is cut
    2. the stream goes on
    """
    clock = Clock()
    following = Following(after=None, clock=clock)
    for _ in range(100):
        following.opened()
        clock.now += 6
        assert following.next_delay("closed") <= 0.2


def test_connections_that_die_at_once_are_an_outage() -> None:
    """
    1. a server accepts and closes at once, again and again, delivering nothing
    2. that is no recovery: the bound holds
    """
    clock = Clock()
    following = Following(after=None, clock=clock)

    def connections() -> None:
        for _ in range(100):
            following.opened()
            clock.now += following.next_delay("closed")

    with pytest.raises(StreamLost):
        connections()


def test_retry_after_is_honoured() -> None:
    assert Following(after=None).next_delay(RateLimited("slow", status=429, retry_after_seconds=7)) == 7
    assert Following(after=None).next_delay(ServerError("away", status=503, retry_after_seconds=3)) == 3


def test_errors_that_time_does_not_mend_are_told_at_once() -> None:
    error = NotFound("no such run", status=404)
    with pytest.raises(NotFound):
        Following(after=None).next_delay(error)


@pytest.mark.parametrize("after", ["banana", "1", "0-1", "1-0", "1-", "", "1-2 ", "１-１", "99999999999-1"])
def test_malformed_cursor_is_the_callers_mistake(after: str) -> None:
    with pytest.raises(BadRequest, match="<attempt>-<n>") as caught:
        Following(after=after)
    assert (caught.value.reason, caught.value.field) == ("CURSOR_MALFORMED", "after")
