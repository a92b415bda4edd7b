"""Event streams: frames, cursors, ends, disconnects, heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from headrace_kit.errors import InvalidArgument, OutOfRange

from tests.integration.api_gateway.conftest import HEARTBEAT_SECONDS, House, no_streams
from tests.support.fake_services import batch, heartbeat

RUN = "/v1/runs/0192f0c1-0000-7000-8000-000000000001/events"


async def _short_run(_request: Any) -> AsyncIterator[Any]:
    yield batch(("1-1", "metadata", b'{"attempt":1}'), ("1-2", "messages", '["a\u2028b"]'.encode()))
    yield heartbeat()
    yield batch(("", "queue", b'{"position":1}'), ("1-3", "result", b'{"status":"completed"}'))
    yield batch(("1-4", "end", b'{"status":"completed"}'))


async def _endless(_request: Any) -> AsyncIterator[Any]:
    yield batch(("1-1", "metadata", b"{}"))
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        yield heartbeat()


async def test_a_run_streams_to_its_end(house: House) -> None:
    """
    1. The relay sends batches, a heartbeat and `end`.
    2. The body is their frames, in order, ids where events have one, data byte for byte.
    3. The headers keep proxies from storing or buffering, and the response is completed.
    """
    house.relay.script = _short_run
    answer = await house.open(RUN)
    assert await answer.to_end() == "clean"
    await answer.close()
    assert answer.status == 200
    assert answer.frames == [
        b'id: 1-1\nevent: metadata\ndata: {"attempt":1}',
        'id: 1-2\nevent: messages\ndata: ["a\u2028b"]'.encode(),
        b'event: queue\ndata: {"position":1}',
        b'id: 1-3\nevent: result\ndata: {"status":"completed"}',
        b'id: 1-4\nevent: end\ndata: {"status":"completed"}',
    ]
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    ("query", "header", "expected"),
    [("", "", ""), ("?after=1-7", "", "1-7"), ("", "1-8", "1-8"), ("?after=1-7", "1-8", "1-8")],
)
async def test_the_header_wins_over_the_query(house: House, query: str, header: str, expected: str) -> None:
    """
    1. A client names its cursor by query, by `Last-Event-ID`, or by both.
    2. The relay is asked from the header's, else from the query's.
    """
    house.relay.script = _short_run
    answer = await house.open(RUN + query, headers={"last-event-id": header} if header else {})
    await answer.to_end()
    await answer.close()
    assert house.relay.calls[-1].after == expected


async def test_modes_are_handed_to_the_relay(house: House) -> None:
    """
    1. A client chooses modes, by comma and by repetition.
    2. The relay gets them all.
    """
    house.relay.script = _short_run
    answer = await house.open(RUN + "?modes=messages,tool&modes=custom")
    await answer.to_end()
    await answer.close()
    assert list(house.relay.calls[-1].modes) == ["messages", "tool", "custom"]


async def test_a_disconnect_cancels_the_relays_call(house: House) -> None:
    """
    1. Three viewers follow a run that does not end.
    2. They go away without a word.
    3. The relay's open streams and the gateway's places return to 0.
    """
    house.relay.script = _endless
    answers = [await house.open(RUN) for _ in range(3)]
    for answer in answers:
        await answer.until(b"metadata")
    assert house.relay.open == 3
    assert house.gateway.streams.count == 3
    for answer in answers:
        await answer.close()
    await no_streams(house)


async def test_heartbeats_are_even(house: House) -> None:
    """
    1. A run sends events all the time.
    2. Comments come at the heartbeat's interval all the same.
    """

    async def busy(_request: Any) -> AsyncIterator[Any]:
        for n in range(1, 10_000):
            yield batch((f"1-{n}", "custom", b"{}"))
            await asyncio.sleep(0.02)

    house.relay.script = busy
    answer = await house.open(RUN)
    loop = asyncio.get_running_loop()
    times: list[float] = []
    while len(times) < 4:
        if (await answer.chunk()).startswith(b": heartbeat"):
            times.append(loop.time())
    await answer.close()
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(0.5 * HEARTBEAT_SECONDS < gap < 2 * HEARTBEAT_SECONDS for gap in gaps), gaps


async def test_a_cursor_at_the_end_is_no_content(house: House) -> None:
    """
    1. The relay says OUT_OF_RANGE: nothing is behind the cursor.
    2. The answer is 204, which makes an EventSource stop.
    """

    async def ended(_request: Any) -> AsyncIterator[Any]:
        raise OutOfRange("the stream has ended", reason="STREAM_ENDED", field="after")
        yield

    house.relay.script = ended
    answer = await house.open(RUN + "?after=1-4")
    await answer.close()
    assert (answer.status, answer.body) == (204, b"")


async def test_a_refused_stream_is_a_problem(house: House) -> None:
    """
    1. The relay refuses the cursor.
    2. The answer is an ordinary problem, with the field, and no place stays taken.
    """

    async def malformed(_request: Any) -> AsyncIterator[Any]:
        raise InvalidArgument("event id 'x' is not <attempt>-<n>", reason="CURSOR_MALFORMED", field="after")
        yield

    house.relay.script = malformed
    async with house.client() as client:
        answer = await client.get(RUN + "?after=x")
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["reason"] == "CURSOR_MALFORMED"
    assert answer.json()["field"] == "after"
    assert house.gateway.streams.count == 0


async def test_unknown_run_and_unknown_mode(house: House) -> None:
    """
    1. A run that the relay does not know is 404.
    2. A mode that no run has is 400 and never reaches the relay.
    """
    async with house.client() as client:
        unknown = await client.get(RUN)
        mode = await client.get(RUN + "?modes=messages,colour")
    assert (unknown.status_code, unknown.json()["reason"]) == (404, "RUN_NOT_FOUND")
    assert (mode.status_code, mode.json()["field"]) == (400, "modes")
    assert len(house.relay.calls) == 1


async def test_refusals_are_never_taken_for_streams(house: House) -> None:
    """
    1. A hundred clients at once ask for a run that the relay does not know.
    2. All of them get 404, none a stream that breaks.
    """
    _, key = await house.add_key("read", uid="many")
    async with house.client(key) as client:
        for _ in range(25):
            answers = await asyncio.gather(*(client.get(RUN) for _ in range(4)))
            assert [answer.status_code for answer in answers] == [404] * 4


async def test_headers_come_before_the_first_event(house: House) -> None:
    """
    1. The relay lets a viewer in and has nothing to say.
    2. The client has its 200 at once, and waits for events with an open stream.
    """

    async def quiet(_request: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    house.relay.script = quiet
    house.relay.lets_in = True
    started = asyncio.get_running_loop().time()
    answer = await house.open(RUN)
    assert answer.status == 200
    assert asyncio.get_running_loop().time() - started < 0.5
    await answer.close()


async def test_a_slow_reader_is_not_buffered_for(house: House) -> None:
    """
    1. A client does not read while the relay offers 64 MiB.
    2. The relay is held back: it cannot hand over more than sockets and windows hold.
    """
    taken = 0

    async def flood(_request: Any) -> AsyncIterator[Any]:
        nonlocal taken
        for n in range(1, 1025):
            yield batch((f"1-{n}", "custom", b'"' + b"x" * 65_536 + b'"'))
            taken += 1

    house.relay.script = flood
    answer = await house.open(RUN)
    before = -1
    while taken != before:
        before = taken
        await asyncio.sleep(0.3)
    await answer.close()
    assert taken < 512
