"""One virtual user: submits over HTTP, follows the run, reads the result back, and is not content with less than all.

Strict success: the result read back belongs to this very request and run, is `completed`, its ten timing fields are
there and in order, its text is exactly the script's, the streamed text too, and the event ids have no hole.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from headrace_client.types import LATENCIES, TIMES

from headrace_loadtest.scenarios import AGENT, Scenario

SILENCE_S = 15.0
"""Three heartbeats of the server; then a stream counts as dead, which is a failure here and no reason to resume."""
RUN_TIMEOUT_S = 180.0
"""The longest that a run may take before it counts as lost."""
_SUPPLIER_ERRORS = frozenset({"model_refused", "model_unavailable"})
_ID = re.compile(r"([0-9]+)-([0-9]+)")


class Failure(Exception):
    """The run is no success; the message is its class, as it is counted."""


@dataclass(slots=True)
class Outcome:
    """What one run showed. Times are seconds since its submission was sent."""

    failure: str | None = None
    detail: str = ""
    run_id: str = ""
    thread_id: str = ""
    accepted_s: float | None = None
    ready_s: float | None = None
    first_token_s: float | None = None
    overall_s: float | None = None
    events: int = 0
    attempts: int = 0
    latencies: dict[str, int | None] = field(default_factory=dict)


async def run_once(http: aiohttp.ClientSession, scenario: Scenario, thread_id: str, message: str) -> Outcome:
    """Make one run in a thread and judge it."""
    outcome = Outcome(thread_id=thread_id)
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            await _run(http, scenario, message, outcome)
    except Failure as error:
        outcome.failure, _, outcome.detail = str(error).partition(": ")
    except TimeoutError:
        outcome.failure = "timed out"
    except aiohttp.ClientError as error:
        outcome.failure, outcome.detail = f"connection {type(error).__name__}", str(error)
    return outcome


async def call(http: aiohttp.ClientSession, method: str, path: str, **rest: Any) -> Any:
    """Make one call and return its JSON.

    Raises Failure for an answer that is no success.
    """
    async with http.request(method, path, **rest) as response:
        body = await response.read()
        if response.status >= 400:
            raise Failure(f"HTTP {response.status}: {body[:300].decode('utf-8', 'replace')}")
        return orjson.loads(body) if body else None


async def create_thread(http: aiohttp.ClientSession) -> str:
    """Create a virtual user's own thread."""
    thread = await call(http, "POST", "/v1/threads", json={"agent": AGENT, "title": "load run"})
    return str(thread["thread_id"])


async def _run(http: aiohttp.ClientSession, scenario: Scenario, message: str, outcome: Outcome) -> None:
    began = time.monotonic()
    path = f"/v1/threads/{outcome.thread_id}/requests"
    request = await call(http, "POST", path, json={"message": message})
    outcome.accepted_s = time.monotonic() - began
    outcome.run_id = request["run_id"]
    texts: dict[str, str] = {}
    status = None
    last = (0, 0)
    async for event_id, event, raw in events(http, outcome.run_id):
        now = time.monotonic() - began
        outcome.events += 1
        if event_id is not None:
            last = follows(last, event_id)
        if outcome.ready_s is None and event != "queue":
            outcome.ready_s = now
        if event == "messages":
            if read_chunk(orjson.loads(raw)[0], texts) and outcome.first_token_s is None:
                outcome.first_token_s = now
        elif event in {"metadata", "snapshot"}:
            data = orjson.loads(raw)
            read_picture(event, data, texts)
            if event == "metadata":
                belongs(data, run_id=outcome.run_id, thread_id=outcome.thread_id, request_id=request["request_id"])
                outcome.attempts = data["attempt"]
        elif event == "end":
            outcome.overall_s = now
            status = orjson.loads(raw)["status"]
    if status is None:
        raise Failure("stream ended without end")
    result = await call(http, "GET", f"/v1/runs/{outcome.run_id}/result")
    judge(scenario, result, request, outcome)
    if (list(texts.values()) or [""])[-1] != scenario.answer:
        raise Failure(f"streamed text differs: {(list(texts.values()) or [''])[-1][:80]!r}")


async def events(http: aiohttp.ClientSession, run_id: str) -> AsyncIterator[tuple[str | None, str, bytes]]:
    """Yield (id, event, data) of a run's stream to its end, read as bytes: the load generator shares the machine."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
    async with http.get(f"/v1/runs/{run_id}/events", timeout=timeout) as response:
        if response.status != 200:
            raise Failure(f"HTTP {response.status} on events: {(await response.text())[:300]}")
        rest = b""
        async for piece in response.content.iter_any():
            *frames, rest = (rest + piece).split(b"\n\n")
            for frame in frames:
                fields = dict(line.split(b": ", 1) for line in frame.split(b"\n") if line and line[:1] != b":")
                if b"data" in fields:
                    event_id = fields.get(b"id")
                    yield event_id.decode() if event_id else None, fields[b"event"].decode(), fields[b"data"]


def follows(last: tuple[int, int], event_id: str) -> tuple[int, int]:
    """Return an id's place.

    Raises Failure unless it comes right after the last one: n + 1, or n = 1 of a later attempt.
    """
    match = _ID.fullmatch(event_id)
    if match is None:
        raise Failure(f"bad event id: {event_id[:60]}")
    place = int(match[1]), int(match[2])
    if place != (last[0], last[1] + 1) and not (place[0] > last[0] and place[1] == 1):
        raise Failure(f"event ids not contiguous: {event_id} after {last[0]}-{last[1]}")
    return place


def read_chunk(chunk: Mapping[str, Any], texts: dict[str, str]) -> bool:
    """Add a message chunk's text to what is shown; return whether it held any model output."""
    if chunk["type"] not in {"AIMessageChunk", "ai"}:
        return False
    content = chunk.get("content")
    content = content if isinstance(content, str) else "".join(block.get("text", "") for block in content or ())
    if chunk["type"] == "ai":
        texts[chunk["id"]] = content
    else:
        texts[chunk["id"]] = texts.get(chunk["id"], "") + content
    reasoning = (chunk.get("additional_kwargs") or {}).get("reasoning_content")
    return bool(content or reasoning or chunk.get("tool_call_chunks") or chunk.get("tool_calls"))


def read_picture(event: str, data: Mapping[str, Any], texts: dict[str, str]) -> None:
    """Let a new attempt or a snapshot replace what is shown."""
    texts.clear()
    if event == "snapshot":
        for message in data["messages"]:
            if message["role"] == "assistant" and isinstance(message["content"], str):
                texts[message["message_id"]] = message["content"]


def belongs(data: Mapping[str, Any], **expected: str) -> None:
    """Raise Failure unless the named fields have the expected values."""
    for name, value in expected.items():
        if data.get(name) != value:
            raise Failure(f"wrong {name}: {data.get(name)} instead of {value}")


def judge(scenario: Scenario, result: Mapping[str, Any], request: Mapping[str, Any], outcome: Outcome) -> None:
    """Raise Failure unless the result read back is the very one that was asked for."""
    run = result["run"]
    belongs(run, run_id=outcome.run_id, thread_id=outcome.thread_id, request_id=request["request_id"])
    timing = run["timing"]
    outcome.latencies = {name: timing.get(name) for name in LATENCIES}
    if run["state"] != "completed":
        error = run.get("error") or {}
        if error.get("type") in _SUPPLIER_ERRORS:
            raise Failure(f"refused by the model's supplier: {error.get('message')}")
        raise Failure(f"run {run['state']}: {error.get('type')} {error.get('message')}")
    times = [timing.get(name) for name in TIMES]
    if None in times or None in outcome.latencies.values():
        raise Failure(f"timing incomplete: {timing}")
    if times != sorted(times) or min(v for v in outcome.latencies.values() if v is not None) < 0:
        raise Failure(f"timing not in order: {timing}")
    output = result.get("output") or {}
    belongs(output, run_id=outcome.run_id)
    if output.get("content") != scenario.answer:
        raise Failure(f"output text differs: {str(output.get('content'))[:80]!r}")
