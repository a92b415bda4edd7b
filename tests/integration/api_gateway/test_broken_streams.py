"""Streams that end before `end`: resumed inside when the relay comes back, otherwise broken, never completed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from api_gateway import server
from api_gateway.loops import key_watch
from headrace_kit.errors import NotFound, ServiceError, Unavailable

from tests.integration.api_gateway.conftest import HEARTBEAT_SECONDS, OUTAGE_SECONDS, House, eventually
from tests.support.fake_services import ScriptedRelay, batch, heartbeat, serving

RUN = "/v1/runs/0192f0c1-0000-7000-8000-000000000002/events"


def _event(n: int) -> tuple[str, str, bytes]:
    return (f"1-{n}", "end" if n == 100 else "custom", b"%d" % n)


def _after(cursor: str) -> int:
    return int(cursor.split("-")[1]) if cursor else 0


async def test_a_dying_relay_is_resumed_by_cursor(house: House) -> None:
    """
    1. The relay breaks off with UNAVAILABLE after every 7 events of 100, sometimes in the middle of nothing.
    2. The viewer sees one response: ids 1 to 100, each once, in order, and a clean end.
    3. Each new call began behind the last event that was sent.
    """

    async def dying(request: Any) -> AsyncIterator[Any]:
        start = _after(request.after) + 1
        for n in range(start, min(start + 7, 101)):
            yield batch(_event(n))
        if start + 7 <= 100:
            raise Unavailable("going down", reason="DRAINING")

    house.relay.script = dying
    answer = await house.open(RUN)
    assert await answer.to_end() == "clean"
    await answer.close()
    assert answer.ids == [f"1-{n}" for n in range(1, 101)]
    assert [_after(call.after) for call in house.relay.calls] == list(range(0, 100, 7))


async def test_a_killed_relay_is_found_again(house: House) -> None:
    """
    1. A viewer follows through a relay that is stopped hard in mid-stream, its port with it.
    2. Another relay comes up on the same address half a second later.
    3. The same response goes on to the end without a gap or a doubled id.
    """
    going_on = asyncio.Event()

    async def play(request: Any) -> AsyncIterator[Any]:
        for n in range(_after(request.after) + 1, 101):
            yield batch(_event(n))
            if n == 40:
                await going_on.wait()

    first, second = ScriptedRelay(), ScriptedRelay()
    first.script = second.script = play
    tokens = house.config.tokens_file
    async with serving(tokens, relay=first) as relay_server:
        address = relay_server.address
        config = house.config.model_copy(update={"event_relay_address": address})
        gateway = await server.startup(config)
        gateway.ready.set()
        answer = await House(gateway, config, house.runs, first, house.database).open(RUN)
        await answer.until(b"id: 1-40\n")
    going_on.set()
    await asyncio.sleep(0.5)
    async with serving(tokens, relay=second, listen=address):
        assert await answer.to_end() == "clean"
        await answer.close()
        await server.shutdown(gateway)
    assert answer.ids == [f"1-{n}" for n in range(1, 101)]
    assert second.calls[0].after == "1-40"


async def test_a_silent_relay_is_left(house: House) -> None:
    """
    1. The relay sends one event and then nothing, no heartbeat either.
    2. After three missed heartbeats the gateway calls again from the cursor.
    """

    async def stalls_once(request: Any) -> AsyncIterator[Any]:
        if not request.after:
            yield batch(_event(1))
            await asyncio.Event().wait()
        yield batch(_event(99), _event(100))

    house.relay.script = stalls_once
    started = asyncio.get_running_loop().time()
    answer = await house.open(RUN)
    assert await answer.to_end() == "clean"
    await answer.close()
    assert asyncio.get_running_loop().time() - started >= 3 * HEARTBEAT_SECONDS
    assert answer.ids == ["1-1", "1-99", "1-100"]
    assert [call.after for call in house.relay.calls] == ["", "1-1"]


async def test_a_long_outage_breaks_the_stream(house: House) -> None:
    """
    1. The relay sends one event and is away from then on.
    2. The stream stays open for the outage bound, then the connection is broken without the final chunk.
    """

    async def gone(request: Any) -> AsyncIterator[Any]:
        if request.after:
            raise Unavailable("away", reason="AWAY")
        yield batch(_event(1))

    house.relay.script = gone
    answer = await house.open(RUN)
    started = asyncio.get_running_loop().time()
    assert await answer.to_end() == "broken"
    await answer.close()
    assert OUTAGE_SECONDS <= asyncio.get_running_loop().time() - started < OUTAGE_SECONDS + 4
    assert answer.ids == ["1-1"]


async def test_a_deleted_thread_breaks_the_stream(house: House) -> None:
    """
    1. In mid-stream the relay says NOT_FOUND.
    2. The connection is broken at once; nothing is asked again.
    """

    async def deleted(_request: Any) -> AsyncIterator[Any]:
        yield batch(_event(1))
        raise NotFound("gone", reason="RUN_NOT_FOUND")

    house.relay.script = deleted
    answer = await house.open(RUN)
    assert await answer.to_end() == "broken"
    await answer.close()
    assert len(house.relay.calls) == 1


async def test_a_defect_in_the_relay_does_not_loop(house: House) -> None:
    """
    1. After one event every call of the relay fails with INTERNAL.
    2. After three of them without an event the stream is broken.
    """

    async def defective(request: Any) -> AsyncIterator[Any]:
        if not request.after:
            yield batch(_event(1))
        raise ServiceError("boom", reason="INTERNAL")

    house.relay.script = defective
    answer = await house.open(RUN)
    assert await answer.to_end() == "broken"
    await answer.close()
    assert len(house.relay.calls) == 3


async def test_a_revoked_key_breaks_its_streams(house: House) -> None:
    """
    1. Two keys of one user follow a run.
    2. One is revoked: its stream is broken by the next check, the other goes on.
    3. The revoked key opens no stream any more.
    """

    async def endless(_request: Any) -> AsyncIterator[Any]:
        yield batch(_event(1))
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            yield heartbeat()

    house.relay.script = endless
    key_id, key = await house.add_key("read")
    _, other = await house.add_key("read")
    streams = [await house.open(RUN, key=each) for each in (key, other)]
    watching = asyncio.create_task(key_watch.watch(house.gateway._keys, house.gateway.streams, check_seconds=0.2))
    await house.revoke(key_id)
    assert await streams[0].to_end() == "broken"
    assert (await streams[1].chunk()).startswith(b": ") or streams[1].ids == ["1-1"]
    assert not streams[1].ending
    async with house.client(key) as client:

        async def refused() -> bool:
            return (await client.get("/v1/agents")).status_code == 401

        await eventually(refused, seconds=5)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    for stream in streams:
        await stream.close()


async def test_a_stop_breaks_streams_and_ends_waits(house: House) -> None:
    """
    1. A stream and a wait are open at a gateway that is told to stop.
    2. The stream's connection is broken without the final chunk, the wait answers 503, both within a second.
    3. The relay's stream count returns to 0, and the port takes no more.
    """

    async def endless(_request: Any) -> AsyncIterator[Any]:
        yield batch(_event(1))
        await asyncio.Event().wait()

    waiting = asyncio.Event()

    async def wait(_request: Any) -> Any:
        waiting.set()
        await asyncio.Event().wait()

    house.relay.script = endless
    house.runs.answers["WaitRun"] = wait
    config = house.config.model_copy(update={"listen": "127.0.0.1:0"})
    gateway = await server.startup(config)
    gateway.ready.set()
    other = House(gateway, config, house.runs, house.relay, house.database)
    stream = await other.open(RUN)
    await stream.until(b"1-1")
    async with other.client() as client:
        waited = asyncio.create_task(client.get("/v1/runs/x/wait?timeout_seconds=60"))
        await waiting.wait()
        started = asyncio.get_running_loop().time()
        stopping = asyncio.create_task(server.shutdown(gateway))
        assert await stream.to_end() == "broken"
        assert (await waited).json()["reason"] == "STOPPING"
        assert asyncio.get_running_loop().time() - started < 1
    await stream.close()
    await stopping
    async with asyncio.timeout(2):
        await house.relay.idle.wait()
