"""The register of open streams."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from api_gateway.domain.keys import Principal
from api_gateway.domain.registry import StreamRegistry
from headrace_kit.errors import ResourceExhausted, Unavailable


def _principal(uid: str, key_id: str = "k") -> Principal:
    return Principal(key_id, uid, frozenset({"read"}))


async def test_places_return() -> None:
    """
    1. Users fill their places, then the replica's.
    2. The next is refused with the limit that is full; ended streams, failed ones too, give their places back.
    """
    streams = StreamRegistry(per_user=2, per_replica=3)
    with ExitStack() as held:
        held.enter_context(streams.open(_principal("a")))
        held.enter_context(streams.open(_principal("a")))
        with pytest.raises(ResourceExhausted) as user, streams.open(_principal("a")):
            pass
        held.enter_context(streams.open(_principal("b")))
        with pytest.raises(ResourceExhausted) as replica, streams.open(_principal("c")):
            pass
    assert (user.value.metadata["scope"], replica.value.metadata["scope"]) == ("user", "replica")
    assert streams.count == 0
    with pytest.raises(ZeroDivisionError), streams.open(_principal("a")):
        raise ZeroDivisionError
    assert streams.count == 0
    assert not streams._by_user


async def test_breaking() -> None:
    """
    1. Streams of two keys are open; one key ends, then the process stops.
    2. Each stream is broken once, with its first reason, and no new one is let in.
    """
    streams = StreamRegistry(per_user=9, per_replica=9)
    with streams.open(_principal("a", "k1")) as first, streams.open(_principal("a", "k2")) as second:
        assert streams.key_ids() == {"k1", "k2"}
        streams.break_keys({"k1", "k9"}, "key_ended")
        assert first.broken.result() == "key_ended"
        assert not second.broken.done()
        streams.close()
        assert (first.broken.result(), second.broken.result()) == ("key_ended", "stopping")
        with pytest.raises(Unavailable), streams.open(_principal("b")):
            pass
