"""Following over real connections that break: every event once, in order, to the end. Both clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from headrace_client import AsyncClient, Client, Event, NotFound, StreamCorrupt, StreamLost
from headrace_client.errors import NotAuthenticated

from tests.integration.client.tiny_server import (
    Asked,
    Reply,
    TinyServer,
    answer,
    no_content,
    problem,
    reset,
    serving,
    stream,
)

Follow = Callable[..., Awaitable[list[Event]]]

FIRST = [("1-1", "metadata", {"attempt": 1}), ("1-2", "messages", [{"content": "a"}, {}])]
REST = [("1-3", "messages", [{"content": "b"}, {}]), ("1-4", "result", {"status": "completed"})]
END = ("1-5", "end", {"status": "completed"})
WHOLE = ["1-1", "1-2", "1-3", "1-4", "1-5"]


async def follow_async(server: TinyServer, **options: Any) -> list[Event]:
    async with AsyncClient(server.base_url, "hr_key") as client:
        return [event async for event in client.follow("r1", **options)]


async def follow_sync(server: TinyServer, **options: Any) -> list[Event]:
    def work() -> list[Event]:
        with Client(server.base_url, "hr_key") as client:
            return list(client.follow("r1", **options))

    return await asyncio.to_thread(work)


@pytest.fixture(params=[follow_async, follow_sync], ids=["async", "sync"])
def follow(request: pytest.FixtureRequest) -> Follow:
    found: Follow = request.param
    return found


def ids(events: list[Event]) -> list[str | None]:
    return [event.id for event in events]


async def test_one_connection_to_the_end(follow: Follow) -> None:
    """
    1. a stream delivers everything and closes after `end`
    2. the events come in order, with their data decoded, and nothing is asked again
    """
    async with serving(stream(*FIRST, *REST, END)) as server:
        events = await follow(server, modes=["messages", "custom"])
        assert ids(events) == WHOLE
        assert events[1].data == [{"content": "a"}, {}]
        assert len(server.asked) == 1
        assert server.asked[0].path == "/v1/runs/r1/events?modes=messages%2Ccustom"
        assert server.asked[0].headers["authorization"] == "Bearer hr_key"
        assert "last-event-id" not in server.asked[0].headers


@pytest.mark.parametrize(
    ("ending", "between"),
    [
        pytest.param("clean", [], id="clean close"),
        pytest.param("cut", [], id="cut"),
        pytest.param("reset", [], id="reset"),
        pytest.param("cut", [reset], id="then reset"),
        pytest.param("cut", [answer(502, b"<h1>Bad Gateway</h1>", "text/html")], id="then 502 page"),
        pytest.param("cut", [answer(200, b"<p>maintenance</p>", "text/html")], id="then 200 page"),
        pytest.param("cut", [problem(429, "STREAMS", "too many", retry_after="0.3")], id="then 429"),
        pytest.param("cut", [problem(503, "STOPPING", "bye"), stream()], id="then 503, then nothing told"),
    ],
)
async def test_broken_stream_is_resumed_exactly(follow: Follow, ending: str, between: list[Reply]) -> None:
    """
    1. a stream ends after 1-2, politely or not, and without `end`
    2. the next connections fail in some way
    3. then one delivers the rest; it was asked for what is behind 1-2
    """
    async with serving(stream(*FIRST, ending=ending), *between, stream(*REST, END)) as server:
        assert ids(await follow(server)) == WHOLE
        cursors = [asked.headers.get("last-event-id") for asked in server.asked]
        assert cursors == [None] + ["1-2"] * (len(between) + 1)


async def test_half_an_event_is_not_an_event(follow: Follow) -> None:
    """
    1. the connection is cut inside the frame of 1-3
    2. 1-3 comes once, whole, from the next connection
    """
    half = b'id: 1-3\nevent: messages\ndata: [{"content":'
    async with serving(stream(*FIRST, raw=half, ending="cut"), stream(*REST, END)) as server:
        events = await follow(server)
        assert ids(events) == WHOLE
        assert events[2].data == [{"content": "b"}, {}]


async def test_nothing_behind_the_cursor_ends_the_stream(follow: Follow) -> None:
    """
    1. the caller's cursor is at `end`
    2. the server says 204; the stream is over, without an event
    """
    async with serving(no_content) as server:
        assert await follow(server, after="1-5") == []
        assert server.asked[0].headers["last-event-id"] == "1-5"


async def test_429_waits_as_told(follow: Follow) -> None:
    async with serving(problem(429, "STREAMS", "too many", retry_after="0.6"), stream(*FIRST, *REST, END)) as server:
        began = asyncio.get_running_loop().time()
        assert ids(await follow(server)) == WHOLE
        assert asyncio.get_running_loop().time() - began >= 0.6


@pytest.mark.parametrize(("status", "cls"), [(404, NotFound), (401, NotAuthenticated)])
async def test_refusals_are_told_at_once(follow: Follow, status: int, cls: type[Exception]) -> None:
    """
    1. a stream is cut, and meanwhile the thread was deleted or the key revoked
    2. the caller is told, and nothing is tried again
    """
    async with serving(stream(*FIRST, ending="cut"), problem(status, "GONE", "no such run")) as server:
        with pytest.raises(cls):
            await follow(server)
        assert len(server.asked) == 2


async def test_outage_is_bounded(follow: Follow) -> None:
    """
    1. a stream is cut after 1-2 and every later connection is broken
    2. after the bound StreamLost says where to go on
    """
    async with serving(stream(*FIRST, ending="cut"), reset) as server:
        with pytest.raises(StreamLost) as caught:
            await follow(server, outage_seconds=0.5)
        assert caught.value.last_event_id == "1-2"
        assert len(server.asked) >= 2


async def test_doubled_event_is_an_error(follow: Follow) -> None:
    """
    1. a server resumes with an event that was delivered already
    2. the caller is told instead of seeing it twice
    """
    async with serving(stream(*FIRST, ending="cut"), stream(FIRST[1], *REST, END)) as server:
        with pytest.raises(StreamCorrupt, match="1-2 came after 1-2"):
            await follow(server)


async def test_reset_is_passed_on_and_the_order_begins_anew(follow: Follow) -> None:
    """
    1. the caller's cursor is unknown to the server
    2. `reset` and the newest snapshot come, then the end
    """
    events = [(None, "reset", {"reason": "unknown_cursor"}), ("1-3", "snapshot", {"messages": []}), *REST[1:], END]
    async with serving(stream(*events)) as server:
        assert ids(await follow(server, after="9-9")) == [None, "1-3", "1-4", "1-5"]


async def test_leaving_closes_the_connection() -> None:
    """
    1. a stream goes on for ever
    2. the caller stops after two events
    3. the server sees the connection close
    """
    closed = asyncio.Event()

    async def endless(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        n = 0
        try:
            while True:
                n += 1
                writer.write(f"id: 1-{n}\nevent: custom\ndata: {json.dumps(n)}\n\n".encode())
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            closed.set()

    async with serving(endless) as server, AsyncClient(server.base_url, "hr_key") as client:
        events = client.follow("r1")
        seen = [await anext(events), await anext(events)]
        await events.aclose()
        assert [event.data for event in seen] == [1, 2]
        async with asyncio.timeout(5):
            await closed.wait()
