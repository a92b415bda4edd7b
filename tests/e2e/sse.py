"""A strict reader of our SSE frames over httpx: every frame as (id, event, data), whole frames only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Frame:
    id: str
    event: str
    data: Any


async def frames(response: httpx.Response) -> AsyncIterator[Frame]:
    """Yield complete frames until the connection ends; comments are skipped, a cut frame is dropped."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line == "":
            if "data" in fields:
                yield Frame(fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            assert name in {"id", "event", "data"}, line
            assert name not in fields, f"a frame's {name} must be one line"
            fields[name] = value


async def follow(client: httpx.AsyncClient, run_id: str, *, last_event_id: str | None = None) -> list[Frame]:
    """Follow a run to its `end` on one connection and return every frame."""
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    async with client.stream("GET", f"/v1/runs/{run_id}/events", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        return [frame async for frame in frames(response)]


def text_of(received: list[Frame]) -> str:
    """Return what a viewer shows in the end: deltas appended, a new attempt and a snapshot replacing what was there."""
    text: dict[str, str] = {}
    for frame in received:
        if frame.event == "metadata":
            text = {}
        elif frame.event == "snapshot":
            text = {
                m["message_id"]: m["content"]
                for m in frame.data["messages"]
                if m["role"] == "assistant" and isinstance(m["content"], str)
            }
        elif frame.event == "messages":
            chunk = frame.data[0]
            if chunk["type"] == "AIMessageChunk" and isinstance(chunk["content"], str):
                text[chunk["id"]] = text.get(chunk["id"], "") + chunk["content"]
            elif chunk["type"] == "ai":
                text[chunk["id"]] = chunk["content"]
    return "".join(text.values())


def ids(received: list[Frame]) -> list[str]:
    """Return the ids of the frames that have one, in order."""
    return [frame.id for frame in received if frame.id]


def assert_contiguous(event_ids: list[str]) -> None:
    """Assert that attempts rise and that n counts 1, 2, 3, ... inside each."""
    expected: dict[int, int] = {}
    last_attempt = 0
    for event_id in event_ids:
        attempt, n = (int(part) for part in event_id.split("-"))
        assert attempt >= last_attempt, event_ids
        last_attempt = attempt
        assert n == expected.get(attempt, 0) + 1, (event_id, event_ids[:40])
        expected[attempt] = n
