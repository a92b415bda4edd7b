"""Streams of requests, the stream that a submit answers with, and how many streams there may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb
from headrace_kit.errors import Unavailable

from tests.integration.api_gateway.conftest import HEARTBEAT_SECONDS, House, eventually, no_streams
from tests.integration.api_gateway.sse_reader import RawResponse
from tests.support.fake_services import batch, heartbeat

REQUEST = "/v1/requests/q1/events"
SUBMIT = "/v1/threads/t1/requests"
NAMES = b'"request_id":"q1","thread_id":"t1","run_id":"r1"}'
SSE = {"accept": "text/event-stream"}


def _request(state: run_pb2.Request.State.ValueType) -> pb.GetRequestResponse:
    return pb.GetRequestResponse(request=run_pb2.Request(request_id="q1", thread_id="t1", run_id="r1", state=state))


async def _endless(_request: Any) -> AsyncIterator[Any]:
    while True:
        yield heartbeat()
        await asyncio.sleep(HEARTBEAT_SECONDS)


async def test_a_queued_request_until_its_run(house: House) -> None:
    """
    1. A request waits: two changes of its place, then it is dispatched.
    2. Its stream tells the places, then `run` with the run's id, and is completed; no frame has an id.
    """
    state = run_pb2.Request.STATE_QUEUED

    async def queue(_request: Any) -> AsyncIterator[Any]:
        nonlocal state
        yield batch(("", "queue", b'{"position":2}'))
        yield heartbeat()
        yield batch(("", "queue", b'{"position":1}'))
        state = run_pb2.Request.STATE_DISPATCHED
        yield batch(("1-1", "metadata", b"{}"))
        await asyncio.Event().wait()

    house.relay.script = queue
    house.runs.answers["GetRequest"] = lambda _: _request(state)
    answer = await house.open(REQUEST)
    assert await answer.to_end() == "clean"
    await answer.close()
    # The gateway asks run-worker at each sign: how far the script has come by then is a matter of timing.
    assert answer.frames[-1] == b"event: run\ndata: {" + NAMES
    assert set(answer.frames[:-1]) <= {b'event: queue\ndata: {"position":2}', b'event: queue\ndata: {"position":1}'}
    assert answer.ids == []
    assert house.relay.calls[0].run_id == "r1"
    await no_streams(house)


async def test_a_queue_that_moves_is_told(house: House) -> None:
    """
    1. A request waits and its place changes; nothing else happens.
    2. The viewer has the queue's frames while it waits; run-worker's absence in between does not matter.
    """
    asked = 0

    async def queue(_request: Any) -> AsyncIterator[Any]:
        for position in (3, 2, 1):
            yield batch(("", "queue", b'{"position":%d}' % position))
        async for each in _endless(_request):
            yield each

    def get(_request_: Any) -> pb.GetRequestResponse:
        nonlocal asked
        asked += 1
        if asked in range(6, 9):
            raise Unavailable("restarting", reason="DRAINING")
        return _request(run_pb2.Request.STATE_QUEUED if asked < 12 else run_pb2.Request.STATE_CANCELLED)

    house.relay.script = queue
    house.runs.answers["GetRequest"] = get
    answer = await house.open(REQUEST)
    assert await answer.to_end() == "clean"
    await answer.close()
    assert answer.frames == [
        *(b'event: queue\ndata: {"position":%d}' % position for position in (3, 2, 1)),
        b'event: end\ndata: {"status":"cancelled",' + NAMES,
    ]


async def test_a_request_that_is_over_needs_no_relay(house: House) -> None:
    """
    1. A dispatched and a cancelled request are followed; an unknown one is too.
    2. The first two are told at once, in one frame; the third is 404. The relay is not asked.
    """
    house.runs.answers["GetRequest"] = lambda _: _request(run_pb2.Request.STATE_DISPATCHED)
    dispatched = await house.open(REQUEST)
    assert await dispatched.to_end() == "clean"
    house.runs.answers["GetRequest"] = lambda _: _request(run_pb2.Request.STATE_CANCELLED)
    cancelled = await house.open(REQUEST)
    assert await cancelled.to_end() == "clean"
    house.runs.answers.clear()
    unknown = await house.open(REQUEST)
    for answer in (dispatched, cancelled, unknown):
        await answer.close()
    assert dispatched.frames == [b"event: run\ndata: {" + NAMES]
    assert cancelled.frames == [b'event: end\ndata: {"status":"cancelled",' + NAMES]
    assert unknown.status == 404
    assert house.relay.calls == []


async def _submit(house: House, **headers: str) -> RawResponse:
    return await house.open(
        SUBMIT + "?modes=messages", method="POST", headers={**SSE, **headers}, body=b'{"message":"hi"}'
    )


async def test_a_submit_that_streams(house: House) -> None:
    """
    1. A submit accepts an event stream.
    2. The answer is the run's stream from its beginning to its end, with the run's addresses in the headers.
    3. Repeated with its key and a cursor, it goes on behind the cursor.
    """

    async def play(request: Any) -> AsyncIterator[Any]:
        for n in range(int(request.after[2:] or 0) + 1, 4):
            yield batch((f"1-{n}", "end" if n == 3 else "messages", b"%d" % n))

    house.relay.script = play
    house.runs.answers["SubmitRequest"] = lambda asked: pb.SubmitRequestResponse(
        request=run_pb2.Request(request_id="q1", run_id="r1", state=run_pb2.Request.STATE_DISPATCHED),
        replayed=asked.idempotency_key == "again",
    )
    answer = await _submit(house)
    assert await answer.to_end() == "clean"
    again = await _submit(house, **{"idempotency-key": "again", "last-event-id": "1-2"})
    assert await again.to_end() == "clean"
    for each in (answer, again):
        await each.close()
    assert (answer.status, answer.ids) == (200, ["1-1", "1-2", "1-3"])
    assert answer.headers["location"] == "/v1/runs/r1"
    assert answer.headers["content-location"] == "/v1/runs/r1/events"
    assert answer.headers["content-type"] == "text/event-stream"
    assert (again.ids, again.headers["idempotency-replayed"]) == (["1-3"], "true")
    assert list(house.relay.calls[0].modes) == ["messages"]


async def test_a_submit_survives_an_absent_relay(house: House) -> None:
    """
    1. A submit accepts an event stream while the relay is away.
    2. The headers come at once, with the run's id, and the events when the relay is back.
    """

    async def away(_request: Any) -> AsyncIterator[Any]:
        if len(house.relay.calls) < 3:
            raise Unavailable("away", reason="AWAY")
        yield batch(("1-1", "end", b"{}"))

    house.relay.script = away
    house.runs.answers["SubmitRequest"] = lambda _: pb.SubmitRequestResponse(request=run_pb2.Request(run_id="r1"))
    answer = await _submit(house)
    assert answer.headers["location"] == "/v1/runs/r1"
    assert await answer.to_end() == "clean"
    await answer.close()
    assert answer.ids == ["1-1"]


async def test_a_refused_submit_is_a_problem(house: House) -> None:
    """
    1. run-worker refuses a submit that would stream.
    2. The answer is a problem, and no stream's place stays taken.
    """
    answer = await _submit(house)
    await answer.close()
    assert (answer.status, orjson.loads(answer.body)["reason"]) == (404, "THING_NOT_FOUND")
    assert house.gateway.streams.count == 0


async def test_streams_per_user(house: House) -> None:
    """
    1. A user opens as many streams as one may (4 here), with two keys.
    2. The next is 429 with Retry-After, a submit that would stream too, before anything is submitted.
    3. Another user still streams; after one stream ends, the first user does again.
    """
    house.relay.script = _endless
    house.runs.answers["SubmitRequest"] = lambda _: pb.SubmitRequestResponse(request=run_pb2.Request(run_id="r1"))
    _, second = await house.add_key("write", uid="local")
    _, other = await house.add_key("read", uid="somebody")
    path = "/v1/runs/r1/events"
    held = [await house.open(path), await house.open(path), await house.open(path, key=second), await house.open(path)]
    assert [each.status for each in held] == [200] * 4
    refused = await house.open(path, key=second)
    submitted = await _submit(house)
    for answer in (refused, submitted):
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert orjson.loads(answer.body)["metadata"] == {"scope": "user", "limit": "4"}
        await answer.close()
    assert [name for name, *_ in house.runs.calls] == []
    stranger = await house.open(path, key=other)
    assert stranger.status == 200
    await held[0].close()

    async def freed() -> bool:
        return house.gateway.streams.count == 4

    await eventually(freed)
    again = await house.open(path)
    assert again.status == 200
    for answer in (*held[1:], stranger, again):
        await answer.close()
    await no_streams(house)
