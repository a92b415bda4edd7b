"""The shared window: whatever happens in whatever order, each viewer reads the whole log, once, in order."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from event_relay.domain.book import TailBook
from event_relay.domain.entry import BEGINNING, Entry
from event_relay.domain.outcome import DELETED, Outcome
from event_relay.domain.pace import Pace, PaceFigures
from event_relay.domain.tail import Tail, Window
from headrace_contract.projection import EventId
from headrace_kit.budget import Budget
from hypothesis import given
from hypothesis import strategies as st

MAX_READS, MAX_BYTES, COUNT = 4, 40, 5
FIGURES = PaceFigures(base=0.05, hold=2.0, busy_max=1.0, idle_after=120.0, idle_max=4.0, jitter=0.2)
RUNNING = Outcome("running", False, False, False, None, None, None, None, None)


class Reader:
    """A viewer reduced to its rule: from the window if it covers the place, else a page of the log."""

    def __init__(self, after: EventId) -> None:
        self.after = after
        self.seen: list[EventId] = []
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def step(self, tail: Tail, log: list[Entry]) -> None:
        if tail.covers(self.after):
            entries = tail.window.after(self.after)
        else:
            entries = [entry for entry in log if entry.at > self.after][:COUNT]
        self.seen += [entry.at for entry in entries]
        if entries:
            self.after = entries[-1].at
        elif not tail.live:
            tail.start(self.after)


def _tail() -> Tail:
    window = Window(max_reads=MAX_READS, max_bytes=MAX_BYTES)
    return Tail(uuid4(), "key", window=window, pace=Pace(FIGURES, 0.0))


def _read(tail: Tail, log: list[Entry]) -> None:
    entries = [entry for entry in log if entry.at > tail.position][:COUNT]
    if tail.live and entries:
        tail.extend(entries)


@given(
    st.lists(st.tuples(st.sampled_from("wwwrjsss"), st.integers(0, 30), st.integers(0, 15)), max_size=120),
)
def test_no_order_of_events_skips_or_doubles_one(moves: list[tuple[str, int, int]]) -> None:
    """1. Writes, tail reads, viewers that join with any cursor and step at any time, in any order. 2. In the end each
    has read exactly the log behind its cursor, once, in order; the window never held more than its bounds.
    """
    tail, log, readers = _tail(), list[Entry](), list[Reader]()
    starts: list[EventId] = []

    def write(size: int, _: int) -> None:
        log.append(Entry(EventId(1, len(log) + 1), "custom", b"x" * size))

    def join(pick: int, _: int) -> None:
        place = log[pick % len(log)].at if log and pick % 4 else BEGINNING
        readers.append(Reader(place))
        starts.append(place)
        tail.followers.add(readers[-1])

    def step(pick: int, _: int) -> None:
        if readers:
            readers[pick % len(readers)].step(tail, log)

    def read(_: int, __: int) -> None:
        _read(tail, log)

    does: dict[str, Callable[[int, int], None]] = {"w": write, "r": read, "j": join, "s": step}
    for move, first, second in moves:
        does[move](first, second)
        assert tail.window.size <= MAX_BYTES
    for _ in range(2 * len(log) + 4):
        _read(tail, log)
        for reader in readers:
            reader.step(tail, log)
    for start, reader in zip(starts, readers, strict=True):
        assert reader.seen == [entry.at for entry in log if entry.at > start]


def test_what_everybody_has_taken_is_let_go() -> None:
    """1. A reader in step with its tail. 2. The window holds the last read only, however many there were."""
    tail, reader, log = _tail(), Reader(BEGINNING), list[Entry]()
    tail.followers.add(reader)
    reader.step(tail, log)
    for n in range(1, 100):
        log.append(Entry(EventId(1, n), "custom", b"1234567890"))
        _read(tail, log)
        reader.step(tail, log)
        assert tail.window.size == 10
    assert len(reader.seen) == 99


def test_one_tail_per_run_as_long_as_somebody_follows(budget: Budget) -> None:
    """1. Two viewers of a run share a tail. 2. It stays for the second, and goes with it; its due time goes too."""
    book = TailBook(budget.relay, shards=1, clock=lambda: 100.0)
    run_id, one, other = uuid4(), Reader(BEGINNING), Reader(BEGINNING)
    tail = book.join(run_id, RUNNING, one)
    assert book.join(run_id, RUNNING, other) is tail
    book.go_live(tail, BEGINNING)
    assert book.viewers == 2
    book.leave(tail, one)
    assert book.take_due(100.0) == [tail]
    book.schedule(tail, 100.0)
    book.leave(tail, other)
    assert (book.tails, book.take_due(200.0), book.next_due()) == ({}, [], float("inf"))


def test_a_run_that_begins_is_read_at_once(budget: Budget) -> None:
    """1. A tail that has slowed down while its run waits. 2. The run begins. 3. It is due now, at the base interval."""
    book = TailBook(budget.relay, shards=1, clock=lambda: 100.0)
    tail = book.join(uuid4(), Outcome("pending", False, False, False, None, None, None, None, b"{}"), Reader(BEGINNING))
    book.go_live(tail, BEGINNING)
    assert book.take_due(100.0) == [tail]
    tail.pace.saw_nothing(100.0)
    book.schedule(tail, 101.0)
    book.learn(tail, RUNNING)
    assert (book.take_due(100.0), tail.pace.interval) == ([tail], budget.relay["base_interval_seconds"])


def test_when_postgresql_is_asked_again(budget: Budget) -> None:
    """1. A running run: at the next 5 s. 2. A waiting one: at the next second. 3. One that ended 0.5 s ago: when it has
    settled. 4. One that is deleted or settled is told to its viewers.
    """
    book = TailBook(budget.relay, shards=1, clock=lambda: 101.5)
    reader = Reader(BEGINNING)
    tail = book.join(uuid4(), RUNNING, reader)
    assert (tail.probe_due, tail.ended) == (105.0, False)
    book.learn(tail, Outcome("queued", False, False, False, None, None, None, None, b"{}"))
    assert tail.probe_due == 102.0
    end = (EventId(1, 2), EventId(1, 3), b"{}", None)
    book.learn(tail, Outcome("completed", False, True, False, 0.5, *end))
    assert (tail.probe_due, tail.ended) == (103.0, False)
    book.learn(tail, Outcome("completed", False, True, True, 60.0, *end))
    assert (tail.probe_due, tail.ended) == (105.0, False)
    woken = reader.woken
    book.learn(tail, Outcome("completed", False, True, False, 2.0, *end))
    assert (tail.ended, reader.woken) == (True, woken + 1)
    book.learn(tail, DELETED)
    assert (tail.ended, reader.woken) == (False, woken + 2)
