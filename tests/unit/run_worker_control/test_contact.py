"""Contact: leases are judged only after one whole TTL of answers."""

from __future__ import annotations

from run_worker.loops.contact import Contact


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def answered_each_second(contact: Contact, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        contact.answered()


def test_it_settles_after_one_ttl() -> None:
    """1. PostgreSQL answers each second.  2. Not before 10 s of it may others be judged."""
    clock = Clock()
    contact = Contact(ttl_seconds=10, clock=clock)
    answered_each_second(contact, clock, 10)
    assert not contact.settled
    answered_each_second(contact, clock, 1)
    assert contact.settled


def test_an_outage_begins_it_anew() -> None:
    """1. It is settled.  2. PostgreSQL fails once.  3. It needs another whole TTL."""
    clock = Clock()
    contact = Contact(ttl_seconds=10, clock=clock)
    answered_each_second(contact, clock, 20)
    contact.failed()
    assert not contact.settled
    answered_each_second(contact, clock, 10)
    assert not contact.settled
    answered_each_second(contact, clock, 1)
    assert contact.settled


def test_our_own_pause_begins_it_anew() -> None:
    """1. It is settled.  2. The process stands still for 6 s.  3. It is not settled, nor by the next answer."""
    clock = Clock()
    contact = Contact(ttl_seconds=10, clock=clock)
    answered_each_second(contact, clock, 20)
    clock.now += 6
    assert not contact.settled
    contact.answered()
    assert not contact.settled
