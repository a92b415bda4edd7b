"""Synthesized snapshots stay inside what an event may be, and batches inside theirs."""

from __future__ import annotations

from typing import Any

import orjson
from event_relay.domain.snapshot import bounded_snapshot
from event_relay.handlers.packing import batches
from headrace.relay.v1 import relay_service_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st


def _message(text: Any) -> dict[str, Any]:
    return {"message_id": "m", "role": "assistant", "content": text, "reasoning": "", "tool_calls": [], "name": ""}


def _snapshot(*texts: Any) -> bytes:
    return orjson.dumps({"messages": [_message(text) for text in texts], "interrupts": []})


def test_the_oldest_messages_are_cut_first_and_say_so() -> None:
    """1. Two large messages, one fits. 2. The older is cut, with what it was; the newer is whole."""
    data = _snapshot("a" * 9_000, "b" * 9_000)
    old, new = orjson.loads(bounded_snapshot(data, 15_000))["messages"]
    assert old["content"] == "a" * 2_000
    assert old["truncated"] == {
        "truncated": True,
        "bytes": len(orjson.dumps(_message("a" * 9_000))),
        "where": "message",
    }
    assert new == _message("b" * 9_000)


@given(
    st.lists(st.text(max_size=400) | st.lists(st.text(max_size=50), max_size=3), max_size=20), st.integers(200, 4000)
)
def test_no_snapshot_is_larger_than_allowed(texts: list[Any], max_bytes: int) -> None:
    """1. Any messages, any bound. 2. The snapshot fits; one that fitted is untouched; one that cannot fit says so."""
    data = _snapshot(*texts)
    bounded = bounded_snapshot(data, max_bytes)
    assert len(bounded) <= max_bytes
    if len(data) <= max_bytes:
        assert bounded == data
    else:
        assert b'"truncated":true' in bounded


@given(st.lists(st.integers(0, 3000), max_size=60))
def test_batches_keep_order_and_size(sizes: list[int]) -> None:
    """1. Events of any size. 2. Together the batches are the events in order; only a single one is over the bound."""
    events = [pb.Event(id=f"1-{n}", event="custom", data=b"x" * size) for n, size in enumerate(sizes, start=1)]
    packed = [response.batch for response in batches(events, 2000)]
    assert [event.id for batch in packed for event in batch.events] == [event.id for event in events]
    assert all(len(batch.events) == 1 or batch.ByteSize() <= 2000 for batch in packed)
