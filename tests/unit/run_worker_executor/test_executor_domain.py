from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
import pytest
from headrace_agent.errors import ModelRefused, ModelTimeout, ModelUnavailable
from headrace_kit.errors import Unavailable
from hypothesis import given
from hypothesis import strategies as st
from langgraph.errors import GraphRecursionError
from run_worker.adapters.failures import Verdict, judge
from run_worker.adapters.saver import FenceLost
from run_worker.domain.encoding import json_bytes
from run_worker.domain.limits import Activity, LeaseOver, OpenCall, TimeLimits, broken_limit
from run_worker.domain.manifest import fingerprint
from run_worker.domain.picture import Picture, unanswered_calls
from run_worker.domain.transcript import TranscriptMessage
from run_worker.loops.attempt import Signal, Stop
from run_worker.loops.sent_log import SentLog

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=3),
    max_leaves=10,
)


@given(ANYTHING)
def test_whatever_is_encoded_is_clean_json(value: Any) -> None:
    """
    1. A value holds any text (NUL, lone surrogates), any number.
    2. Its JSON parses and PostgreSQL and browsers would take it.
    """
    text = json_bytes(value).decode()
    parsed = json.loads(text)
    again = json.dumps(parsed, ensure_ascii=False)
    again.encode()
    assert "\x00" not in again
    assert "\\u0000" not in again.replace("\\\\", "")


def test_odd_objects_become_data() -> None:
    """
    1. A value holds bytes, a set, a huge integer and an object.
    2. It is encoded all the same.
    """
    told = orjson.loads(json_bytes({"b": b"xyz", "s": {1}, "n": 2**70, "o": object, 3: "key"}))
    assert (told["b"], told["s"], told["n"], told["3"]) == ({"bytes": 3}, [1], str(2**70), "key")


def test_a_fingerprint_does_not_depend_on_key_order() -> None:
    """
    1. The same facts in two orders.
    2. One fingerprint; another fact gives another.
    """
    one = fingerprint({"a": 1, "b": {"c": 2, "d": 3}})
    assert one == fingerprint({"b": {"d": 3, "c": 2}, "a": 1})
    assert one != fingerprint({"a": 1, "b": {"c": 2, "d": 4}})


LIMITS = TimeLimits(run=100, model_first_byte=10, model_silence=5, tool=20)


@pytest.mark.parametrize(
    ("now", "model", "tool", "pieces", "which"),
    [
        (9.0, OpenCall(0, "m"), None, 0, None),
        (11.0, OpenCall(0, "m"), None, 0, "model_first_byte"),
        (11.0, OpenCall(0, "m"), None, 1, None),
        (11.0, OpenCall(0, "m", heard_at=5.0), None, 0, "model_silence"),
        (21.0, None, OpenCall(0, "t"), 0, "tool"),
        (101.0, None, None, 0, "run"),
    ],
)
def test_limits_are_told_apart(
    now: float, model: OpenCall | None, tool: OpenCall | None, pieces: int, which: str | None
) -> None:
    """
    1. A call has been in flight for a while.
    2. The broken limit, if any, is named; a piece at the sink counts as life.
    """
    models, tools = [model] if model else [], [tool] if tool else []
    assert broken_limit(now, LIMITS, Activity(0.0), pieces=pieces, models=models, tools=tools) == which


def wrapped(error: Exception) -> Exception:
    outer = ValueError("a node's own words")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "verdict", "kind"),
    [
        (ValueError("x"), Verdict.FAIL, "graph_error"),
        (GraphRecursionError("x"), Verdict.FAIL, "recursion_limit"),
        (ModelRefused("x", status=429), Verdict.FAIL, "model_refused"),
        (ModelTimeout("x", which="silence"), Verdict.FAIL, "timeout"),
        (ModelUnavailable("x"), Verdict.RETRY, "model_unavailable"),
        (wrapped(ModelUnavailable("x")), Verdict.FAIL, "graph_error"),
        (wrapped(FenceLost("x")), Verdict.STOP, "graph_error"),
        (wrapped(LeaseOver("x")), Verdict.HAND_BACK, "infrastructure"),
        (wrapped(Unavailable("x", reason="X")), Verdict.HAND_BACK, "infrastructure"),
        (ExceptionGroup("two", [ValueError("a"), ModelRefused("x", status=401)]), Verdict.FAIL, "model_refused"),
    ],
)
def test_exceptions_are_judged(error: Exception, verdict: Verdict, kind: str) -> None:
    """
    1. A graph raises.
    2. Infrastructure is found anywhere in the chain; a supplier's refusal only where the graph let it through.
    """
    failure = judge(error)
    assert (failure.verdict, failure.type) == (verdict, kind)


def test_the_strongest_reason_to_stop_wins() -> None:
    """
    1. A run is told to hand back, then cancelled, then to hand back again.
    2. It is cancelled.
    """

    async def scenario() -> Stop | None:
        signal = Signal()
        for reason in (Stop.HAND_BACK, Stop.CANCEL, Stop.HAND_BACK):
            signal.set(reason)
        return signal.reason

    assert asyncio.run(scenario()) is Stop.CANCEL


def test_a_rewound_log_sends_again_what_redis_lost() -> None:
    """
    1. Five events arrived; Redis comes back with the first three.
    2. Four and five are underway again, unchanged; with none left in the ring it says so.
    """
    log = SentLog(ring_seconds=5.0)
    for number in range(1, 6):
        log.append("custom", str(number).encode())
        log.arrived(number, now=float(number))
    assert log.rewind(3, now=5.0)
    assert [(entry.n, entry.data) for entry in log.underway] == [(4, b"4"), (5, b"5")]
    log.arrived(5, now=100.0)
    assert not log.rewind(1, now=100.0)


def test_a_snapshot_is_cut_to_size() -> None:
    """
    1. A picture holds an old message far over the bound, and a new small one.
    2. The snapshot fits; the old one says what was cut, the new one is whole.
    """
    picture = Picture()
    picture.put(TranscriptMessage("old", "assistant", "x" * 50_000))
    picture.open("new", {}).text.parts.append("fresh")
    snapshot = picture.snapshot(10_000)
    assert len(snapshot) <= 10_000
    old, new = orjson.loads(snapshot)["messages"]
    assert old["truncated"]["where"] == "message"
    assert (new["content"], new["partial"]) == ("fresh", True)


def test_a_foreign_message_is_whole_when_its_text_has_come() -> None:
    """
    1. A foreign model's complete message is announced while half of its pieces are still queued.
    2. The message is partial until the rest has come.
    """
    picture = Picture()
    message = picture.open("m", {})
    message.announced = TranscriptMessage("m", "assistant", "one two")
    message.text.parts.append("one ")
    assert [m.message_id for m in picture.open_messages()] == ["m"]
    message.text.parts.append("two")
    assert picture.open_messages() == []


def test_open_tool_calls_are_found() -> None:
    """
    1. Two calls, one answer.
    2. The other is open.
    """
    calls = [{"id": "a", "name": "x", "args": {}}, {"id": "b", "name": "x", "args": {}}]
    messages = [
        TranscriptMessage("1", "assistant", "", tool_calls=calls),
        TranscriptMessage("2", "tool", "done", tool_call_id="a"),
    ]
    assert [call["id"] for call in unanswered_calls(messages)] == ["b"]


class Mute:
    """An object whose own code fails."""

    def __str__(self) -> str:
        raise ValueError("no text")

    def model_dump(self) -> Any:
        raise RuntimeError("no fields")


def test_content_never_makes_encoding_fail() -> None:
    """
    1. A value is 5,000 levels deep, holds itself, or has objects whose text and fields raise, as values and keys.
    2. It is encoded all the same; what has no text is a marker with its type.
    """
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    deep_mapping: dict[str, Any] = {"nul": "\x00"}
    for _ in range(5_000):
        deep_mapping = {"in": deep_mapping}
    circle: dict[str, Any] = {}
    circle["one"] = circle["two"] = circle
    for value in (deep, deep_mapping, circle):
        orjson.loads(json_bytes(value))
    told = json_bytes({"a": Mute(), "b": [{Mute(): 1}]}).decode()
    assert told.count("<Mute without a text: ValueError>") == 2


def test_a_number_left_out_does_not_confuse_the_ring() -> None:
    """
    1. Of four events the second number is left out; all arrive, then Redis has lost the tail behind the hole.
    2. That tail is offered again, with its numbers.
    """
    log = SentLog(ring_seconds=5.0)
    log.append("custom", b"1")
    log.skip()
    log.append("custom", b"3")
    log.append("custom", b"4")
    log.arrived(3, 0.0)
    assert [entry.n for entry in log.underway] == [4]
    log.arrived(4, 0.0)
    assert log.rewind(1, 0.0)
    assert [entry.n for entry in log.underway] == [3, 4]
