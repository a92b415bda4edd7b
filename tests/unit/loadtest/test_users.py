"""Strict success: whatever is not exactly as it must be is a failure with its class."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from headrace_client.types import LATENCIES, TIMES
from headrace_loadtest.scenarios import text
from headrace_loadtest.users import Failure, Outcome, follows, judge, read_chunk, read_picture

REQUEST = {"request_id": "q1"}
RESULT: dict[str, Any] = {
    "run": {
        "run_id": "r1",
        "thread_id": "t1",
        "request_id": "q1",
        "state": "completed",
        "timing": {name: f"2030-01-01T00:00:0{n}.000000Z" for n, name in enumerate(TIMES)}
        | dict.fromkeys(LATENCIES, 1),
        "error": None,
    },
    "output": {"run_id": "r1", "content": text().answer},
}


def verdict(**changes: Any) -> str | None:
    """Judge the good result with some fields changed, named by their path."""
    result = copy.deepcopy(RESULT)
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = result
        for parent in parents:
            place = place[parent]
        place[name] = value
    try:
        judge(text(), result, REQUEST, Outcome(run_id="r1", thread_id="t1"))
    except Failure as failure:
        return str(failure).partition(":")[0]
    return None


def test_the_good_result_passes() -> None:
    assert verdict() is None


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"run__run_id": "r2"}, "wrong run_id"),
        ({"run__request_id": "q2"}, "wrong request_id"),
        ({"run__thread_id": "t2"}, "wrong thread_id"),
        ({"run__state": "failed", "run__error": {"type": "graph_error", "message": "x"}}, "run failed"),
        (
            {"run__state": "failed", "run__error": {"type": "model_refused", "message": "x"}},
            "refused by the model's supplier",
        ),
        ({"run__state": "cancelled"}, "run cancelled"),
        ({"run__timing__prepared_at": None}, "timing incomplete"),
        ({"run__timing__dispatch_latency_ms": None}, "timing incomplete"),
        ({"run__timing__dispatch_latency_ms": -1}, "timing not in order"),
        ({"run__timing__prepared_at": "2029-01-01T00:00:00.000000Z"}, "timing not in order"),
        ({"output": None}, "wrong run_id"),
        ({"output__run_id": "r2"}, "wrong run_id"),
        ({"output__content": text().answer[:-1]}, "output text differs"),
    ],
)
def test_anything_else_fails(changes: dict[str, Any], failure: str) -> None:
    assert verdict(**changes) == failure


@pytest.mark.parametrize(
    ("last", "event_id"),
    [
        ((0, 0), "1-2"),
        ((1, 5), "1-7"),
        ((1, 5), "1-5"),
        ((1, 5), "1-4"),
        ((1, 5), "2-2"),
        ((2, 5), "1-6"),
        ((1, 1), "x"),
    ],
)
def test_a_hole_in_the_ids_fails(last: tuple[int, int], event_id: str) -> None:
    with pytest.raises(Failure, match="event id"):
        follows(last, event_id)


def test_the_next_id_and_the_next_attempt_follow() -> None:
    assert follows((0, 0), "1-1") == (1, 1)
    assert follows((1, 5), "1-6") == (1, 6)
    assert follows((1, 5), "3-1") == (3, 1)


def test_shown_text_survives_a_new_attempt() -> None:
    """
    1. deltas are shown, an attempt is lost, a snapshot replaces the picture, deltas go on
    2. the text is what a viewer would see
    """
    texts: dict[str, str] = {}
    assert read_chunk({"type": "AIMessageChunk", "id": "m1", "content": "lost"}, texts)
    read_picture("metadata", {"attempt": 2}, texts)
    read_picture("snapshot", {"messages": [{"role": "assistant", "message_id": "m2", "content": "tok0"}]}, texts)
    assert read_chunk({"type": "AIMessageChunk", "id": "m2", "content": " tok1"}, texts)
    assert texts == {"m2": "tok0 tok1"}


def test_only_model_output_counts_as_first_token() -> None:
    texts: dict[str, str] = {}
    assert not read_chunk({"type": "tool", "id": "x", "content": "42"}, texts)
    assert not read_chunk({"type": "AIMessageChunk", "id": "m", "content": ""}, texts)
    assert read_chunk({"type": "AIMessageChunk", "id": "m", "content": "", "tool_call_chunks": [{}]}, texts)
