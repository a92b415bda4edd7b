"""End to end over HTTP: submit, follow, result, history, cancel, and a user's own graph."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import asyncpg
import httpx
import pytest

from tests.e2e.conftest import ended
from tests.e2e.sse import assert_contiguous, follow, ids, text_of

pytestmark = pytest.mark.e2e

TIMES = ("created_at", "started_at", "prepared_at", "first_output_at", "finished_at")


async def test_a_tool_turn_streams_and_its_result_and_history_agree(
    http: httpx.AsyncClient, submit: Callable[..., Any]
) -> None:
    """
    1. A user asks the assistant for a calculation.
    2. The stream shows the tool call, its result, the answer, then result and end, ids contiguous.
    3. Result, run and history tell the same output and the same timing, complete and in order.
    """
    request = await submit("What is 6 * 7?")
    received = await follow(http, request["run_id"])
    assert [f.event for f in received[-2:]] == ["result", "end"]
    assert received[0].event == "metadata"
    assert received[-1].data == {"status": "completed"}
    assert_contiguous(ids(received))
    tools = [f.data for f in received if f.event == "tool"]
    assert [t["phase"] for t in tools] == ["started", "finished"]
    assert tools[0]["name"] == "calculate"
    assert "42" in text_of(received)

    result = (await http.get(f"/v1/runs/{request['run_id']}/result")).json()
    run = (await http.get(f"/v1/runs/{request['run_id']}")).json()
    page = (await http.get(f"/v1/threads/{request['thread_id']}/messages")).json()
    assert result["run"]["state"] == "completed"
    assert result["output"]["message_id"] == run["output_message_id"] == received[-2].data["output_message_id"]
    assert [m["role"] for m in page["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert page["messages"][-1]["content"] == result["output"]["content"]
    timing = run["timing"]
    assert timing == result["run"]["timing"] == page["runs"][0]["timing"] == received[-2].data["timing"]
    assert [timing[name] for name in TIMES] == sorted(timing[name] for name in TIMES)


async def test_two_requests_of_one_thread_run_in_order(http: httpx.AsyncClient, submit: Callable[..., Any]) -> None:
    """
    1. A slow request is running.
    2. A second one of the thread is queued behind it and says so.
    3. It runs by itself after the first, and its graph has seen the first's messages.
    """
    first = await submit('#script {"tokens": 20, "first_s": 0.3, "rate": 40}')
    second = await submit('#script {"text": "second"}', thread_id=first["thread_id"])
    assert second["state"] == "queued"
    assert second["wait"]["wait_reason"] == "behind_run"
    assert second["wait"]["run_id"] == first["run_id"]
    assert (await ended(http, second["run_id"]))["state"] == "completed"
    assert (await ended(http, first["run_id"]))["state"] == "completed"
    page = (await http.get(f"/v1/threads/{first['thread_id']}/messages")).json()
    assert [m["role"] for m in page["messages"]] == ["user", "assistant", "user", "assistant"]
    assert page["messages"][-1]["content"] == "second"


async def test_cancel_in_mid_stream_closes_the_model_and_keeps_the_text(
    http: httpx.AsyncClient, submit: Callable[..., Any], provider: httpx.AsyncClient
) -> None:
    """
    1. A long answer is streaming.
    2. Its run is cancelled.
    3. The model's socket is closed, the run is `cancelled`, and what was said is kept as a partial message.
    """
    before = (await provider.get("/stats")).json()["totals"]["disconnects"]
    request = await submit('#script {"tokens": 2000, "first_s": 0.1, "rate": 50}')
    seen = 0
    async with http.stream("GET", f"/v1/runs/{request['run_id']}/events") as response:
        async for line in response.aiter_lines():
            seen += line == "event: messages"
            if seen == 10:
                break
    cancelled = await http.post(f"/v1/runs/{request['run_id']}/cancel")
    assert cancelled.status_code == 202
    assert cancelled.json()["cancel_requested_at"] is not None
    run = await ended(http, request["run_id"], seconds=10)
    assert run["state"] == "cancelled"
    async with asyncio.timeout(5):
        while (await provider.get("/stats")).json()["totals"]["disconnects"] <= before:  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.05)
    received = await follow(http, request["run_id"])
    assert received[-1].data == {"status": "cancelled"}
    page = (await http.get(f"/v1/threads/{request['thread_id']}/messages")).json()
    kept = page["messages"][-1]
    assert kept["partial"] is True
    assert kept["content"].startswith("tok0 tok1 tok2")
    assert kept["content"] == text_of(received)


async def test_a_cancel_right_after_submit_holds(http: httpx.AsyncClient, submit: Callable[..., Any]) -> None:
    """
    1. A request is submitted and cancelled at once.
    2. Its run ends `cancelled`, whatever it was doing, and its stream ends so.
    """
    request = await submit('#script {"tokens": 500, "first_s": 0.2, "rate": 50}')
    assert (await http.post(f"/v1/runs/{request['run_id']}/cancel")).status_code == 202
    assert (await ended(http, request["run_id"], seconds=10))["state"] == "cancelled"
    received = await follow(http, request["run_id"])
    assert received[-1].data == {"status": "cancelled"}


async def test_a_users_own_chat_openai_graph_runs_unchanged(
    http: httpx.AsyncClient, submit: Callable[..., Any]
) -> None:
    """
    1. A folder with langgraph.json and a ChatOpenAI graph was named at start.
    2. Its agent is listed, and a run of it streams token by token and ends with the whole text.
    """
    agents = (await http.get("/v1/agents")).json()["agents"]
    assert {"assistant", "echo", "own"} <= {agent["name"] for agent in agents}
    request = await submit('#script {"tokens": 40, "first_s": 0.1, "rate": 100}', agent="own")
    received = await follow(http, request["run_id"])
    assert received[-1].data == {"status": "completed"}
    assert sum(f.event == "messages" for f in received) > 3
    result = (await http.get(f"/v1/runs/{request['run_id']}/result")).json()
    assert text_of(received) == result["output"]["content"] == " ".join(f"tok{i}" for i in range(40))


async def test_submit_and_stream_is_one_call(http: httpx.AsyncClient) -> None:
    """
    1. A client submits with Accept: text/event-stream.
    2. The answer is the run's stream, and names the run in its headers.
    """
    thread = (await http.post("/v1/threads", json={"agent": "echo"})).json()
    async with http.stream(
        "POST",
        f"/v1/threads/{thread['thread_id']}/requests",
        json={"message": "hello there"},
        headers={"Accept": "text/event-stream"},
    ) as response:
        assert response.status_code == 200
        assert response.headers["location"].startswith("/v1/runs/")
        lines = [line async for line in response.aiter_lines()]
    assert "event: end" in lines
    result = (await http.get(response.headers["location"] + "/result")).json()
    assert result["output"]["content"] == "hello there"


async def test_a_foreign_run_looks_like_a_missing_one(
    http: httpx.AsyncClient, submit: Callable[..., Any], admin: asyncpg.Connection
) -> None:
    """
    1. A run belongs to one user.
    2. For another user its run, stream, result and cancel answer exactly as an id that never was.
    """
    request = await submit("hello", agent="echo")
    made = await http.post("/v1/keys", json={"uid": "somebody-else", "scopes": ["read", "write"], "label": "test"})
    assert made.status_code == 201, made.text
    missing = "018f0000-0000-7000-8000-000000000000"
    headers = {"Authorization": f"Bearer {made.json()['key']}"}
    for method, path in (("GET", ""), ("GET", "/result"), ("GET", "/events"), ("POST", "/cancel"), ("GET", "/wait")):
        answers = [
            await http.request(method, f"/v1/runs/{run_id}{path}", headers=headers)
            for run_id in (request["run_id"], missing)
        ]
        assert [a.status_code for a in answers] == [404, 404], path
        told = [
            {k: v for k, v in json.loads(a.text.replace(request["run_id"], missing)).items() if k != "trace_id"}
            for a in answers
        ]
        assert told[0] == told[1]


async def test_an_ended_run_is_told_from_the_beginning_and_a_cursor_at_its_end_is_204(
    http: httpx.AsyncClient, submit: Callable[..., Any]
) -> None:
    """
    1. A run has ended.
    2. Following it replays it to `end`; following from its `end` answers 204, so that EventSource stops.
    """
    request = await submit("one two three", agent="echo")
    await ended(http, request["run_id"])
    received = await follow(http, request["run_id"])
    assert received[-1].event == "end"
    again = await http.get(f"/v1/runs/{request['run_id']}/events", headers={"Last-Event-ID": received[-1].id})
    assert again.status_code == 204
