"""One virtual user against a real HTTP server that plays a run, well or badly."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from headrace_client.types import LATENCIES, TIMES
from headrace_loadtest.scenarios import text
from headrace_loadtest.users import Outcome, run_once

from tests.integration.client.tiny_server import problem, serving, stream, value

SCENARIO = text()
REQUEST = {"request_id": "q1", "run_id": "r1", "thread_id": "t1", "state": "dispatched"}
IDS = {"run_id": "r1", "thread_id": "t1", "request_id": "q1"}
TIMING = dict.fromkeys(TIMES, "2030-01-01T00:00:00.000000Z") | dict.fromkeys(LATENCIES, 1)
RESULT = {
    "run": IDS | {"state": "completed", "timing": TIMING, "error": None},
    "output": {"run_id": "r1", "content": SCENARIO.answer},
}


def delta(event_id: str, content: str) -> tuple[str, str, Any]:
    return event_id, "messages", [{"type": "AIMessageChunk", "id": "m", "content": content}, {}]


HEAD = ("1-1", "metadata", IDS | {"attempt": 1})
CUT = len(SCENARIO.answer) // 2
GOOD = [HEAD, delta("1-2", ""), delta("1-3", SCENARIO.answer[:CUT]), delta("1-4", SCENARIO.answer[CUT:])]
END = [("1-5", "result", {}), ("1-6", "end", {"status": "completed"})]


async def outcome_of(*replies: Any) -> tuple[Outcome, list[Any]]:
    async with serving(*replies) as server, aiohttp.ClientSession(server.base_url) as http:
        outcome = await run_once(http, SCENARIO, "t1", SCENARIO.message(3, 1))
        return outcome, server.asked


async def test_a_run_that_is_all_right() -> None:
    """
    1. a run is submitted, streamed and read back, everything as it must be
    2. it is a success with all its times, in order; the message carries the scenario's script
    """
    outcome, asked = await outcome_of(value(202, REQUEST), stream(*GOOD, *END), value(200, RESULT))
    assert outcome.failure is None, outcome.detail
    times = [outcome.accepted_s, outcome.ready_s, outcome.first_token_s, outcome.overall_s]
    assert None not in times
    assert times == sorted(times, key=lambda moment: moment or 0)
    assert (outcome.events, outcome.attempts) == (6, 1)
    script = json.loads(asked[0].json()["message"].splitlines()[-1].removeprefix("#script "))
    assert script == {"tokens": 200, "first_s": 0.3, "rate": 50}


@pytest.mark.parametrize(
    ("events", "ending", "failure"),
    [
        pytest.param([*GOOD[:2], *GOOD[3:], *END], "clean", "event ids not contiguous", id="hole"),
        pytest.param([*GOOD[:3], delta("1-4", "!"), *END], "clean", "streamed text differs", id="wrong text"),
        pytest.param(GOOD, "clean", "stream ended without end", id="clean close before end"),
        pytest.param(GOOD, "cut", "connection ClientPayloadError", id="cut"),
        pytest.param(
            [("1-1", "metadata", IDS | {"attempt": 1, "run_id": "r2"})], "clean", "wrong run_id", id="not ours"
        ),
    ],
)
async def test_a_stream_that_is_not(events: list[Any], ending: str, failure: str) -> None:
    outcome, _ = await outcome_of(value(202, REQUEST), stream(*events, ending=ending), value(200, RESULT))
    assert outcome.failure == failure


async def test_a_refused_submission_is_a_failure_of_its_own_class() -> None:
    outcome, _ = await outcome_of(problem(429, "ACTIVE_RUNS", "20 runs are active"))
    assert outcome.failure == "HTTP 429"
    assert "20 runs are active" in outcome.detail
