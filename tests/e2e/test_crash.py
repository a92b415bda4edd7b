"""End to end under kill -9: the run goes on elsewhere, its input is applied once, its viewers lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import httpx
import pytest

from tests.e2e.conftest import ended, executor_pid, kill_9
from tests.e2e.sse import Frame, assert_contiguous, follow, frames, ids, text_of

pytestmark = pytest.mark.e2e

SLOW = '#script {"tokens": 100, "first_s": 0.2, "rate": 40}'


async def test_kill_9_of_an_executor_in_mid_stream(
    http: httpx.AsyncClient, submit: Callable[..., Any], admin: asyncpg.Connection
) -> None:
    """
    1. An answer is streaming to a viewer; the executor is killed.
    2. The viewer drops its connection and resumes with Last-Event-ID.
    3. The run is `completed` by the next attempt; the viewer has seen every id once, in order, and the right text.
    4. The input stands in the transcript and in the checkpoint exactly once.
    """
    request = await submit(SLOW)
    run_id = request["run_id"]
    seen: list[Frame] = []
    async with http.stream("GET", f"/v1/runs/{run_id}/events") as response:
        async for frame in frames(response):
            seen.append(frame)
            if sum(f.event == "messages" for f in seen) == 8:
                break
    kill_9(await executor_pid(admin, run_id))
    rest = await follow(http, run_id, last_event_id=seen[-1].id)
    assert rest[-1].data == {"status": "completed"}
    everything = seen + rest
    assert_contiguous(ids(everything))
    assert {i.split("-")[0] for i in ids(everything)} == {"1", "2"}
    assert text_of(everything) == " ".join(f"tok{i}" for i in range(100))

    run = await ended(http, run_id)
    assert run["state"] == "completed"
    assert run["attempt"] == 2
    assert run["faults"] == 1
    page = (await http.get(f"/v1/threads/{request['thread_id']}/messages")).json()
    assert [m["role"] for m in page["messages"]] == ["user", "assistant"]
    state = (await http.get(f"/v1/threads/{request['thread_id']}/state")).json()
    assert [m["type"] for m in state["values"]["messages"]] == ["human", "ai"]


@pytest.mark.parametrize("service", ["run-worker", "event-relay", "api-gateway"])
async def test_kill_9_of_a_service_in_mid_run(
    service: str, http: httpx.AsyncClient, submit: Callable[..., Any], stack: Any
) -> None:
    """
    1. An answer is streaming to a viewer; a service is killed.
    2. The viewer reconnects by its last id until it has `end`.
    3. The run is `completed`; every id came once, in order.
    """
    request = await submit(SLOW)
    run_id = request["run_id"]
    seen: list[Frame] = []
    killed = False
    async with asyncio.timeout(50):
        while not seen or seen[-1].event != "end":
            headers = {"Last-Event-ID": next((i for i in reversed(ids(seen))), "")} if ids(seen) else {}
            try:
                async with http.stream("GET", f"/v1/runs/{run_id}/events", headers=headers) as response:
                    if response.status_code != 200:
                        await asyncio.sleep(0.2)
                        continue
                    async for frame in frames(response):
                        seen.append(frame)
                        if not killed and sum(f.event == "messages" for f in seen) == 8:
                            stack.kill(service, 9)
                            killed = True
            except httpx.TransportError:
                await asyncio.sleep(0.2)
    assert killed
    assert seen[-1].data == {"status": "completed"}
    assert_contiguous(ids(seen))
    assert text_of(seen) == " ".join(f"tok{i}" for i in range(100))
