from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from headrace_contract.projection import EventId, events_key
from headrace_deploy.binaries import servers_choice
from headrace_deploy.servers import Redis
from headrace_kit.budget import Budget
from headrace_kit.redis import open_redis
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from run_worker.adapters.stream import Appended, ProjectionWriter
from run_worker.executor import stream_limits
from run_worker.loops.flusher import Flusher
from run_worker.loops.run_buffer import BUFFER_MAX_BYTES, RunBuffer

from tests.integration.run_worker_executor.graphs import Talker, echo
from tests.integration.run_worker_executor.harness import Event, World, agent


async def test_a_lost_stream_begins_again_with_a_snapshot(world: World) -> None:
    """
    1. A run has told half of its answer; then Redis loses everything.
    2. The run tells the rest.
    3. The stream begins with a snapshot that holds the whole text so far; n goes on and the run completes.
    """
    talker = Talker()
    made = await world.run(agent="talker")
    async with world.executor(agent("talker", talker.graph())):
        await asyncio.wait_for(talker.said.wait(), 10)
        before = await world.event(made, "messages")
        await world.redis.flushall()
        talker.go_on.set()
        await world.state_is(made, "completed")
        events = await world.event(made, "end")
    assert events[0].event == "snapshot"
    assert events[0].data["messages"][0]["content"].startswith("partial text")
    assert events[0].id.n > before[-1].id.n
    numbers = [event.id.n for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_a_newer_attempt_in_the_stream_stops_the_run(world: World) -> None:
    """
    1. A run streams; then its stream holds an entry of attempt 2, as after a takeover.
    2. The next flush of attempt 1 is refused by Redis.
    3. The attempt stops: it writes nothing more, neither to the stream nor to PostgreSQL.
    """
    talker = Talker()
    made = await world.run(agent="talker")
    async with world.executor(agent("talker", talker.graph()), watching=False) as executor:
        await asyncio.wait_for(talker.said.wait(), 10)
        await world.event(made, "messages")
        await world.redis.xadd(events_key(str(made.run_id)), {b"e": b"metadata", b"d": b"{}"}, id="2-1")
        attempt = executor.table.get(made.run_id)
        assert attempt is not None
        attempt.buffer.emit("custom", b"{}")
        assert await executor.table.wait_empty(10)
        assert str((await world.events(made))[-1].id) == "2-1"
        assert (await world.row(made.run_id))["state"] == "running"
        assert talker.cancelled


async def test_an_absent_redis_never_decides_an_outcome(world: World, budget: Budget, tmp_path: Path) -> None:
    """
    1. Redis is stopped while a run streams; deltas are dropped, the run completes all the same.
    2. Redis comes back, empty, while another run streams.
    3. That run's stream begins with a snapshot and ends with `end`.
    """
    own = Redis.prepare(tmp_path / "redis", choice=servers_choice(), durable=False)
    own.start()
    other = World(world.dsns, own.url, budget)
    first, second = Talker(), Talker()
    try:
        await other.control.open()
        agents = (agent("first", first.graph()), agent("second", second.graph()))
        async with other.executor(*agents) as executor:
            one, two = await world.run(agent="first"), await world.run(agent="second")
            await asyncio.wait_for(asyncio.gather(first.said.wait(), second.said.wait()), 10)
            await other.event(two, "messages")
            own.stop()
            first.go_on.set()
            await world.state_is(one, "completed")
            own.start()
            # The test's own connections were cut too.
            await other.redis.connection_pool.disconnect()
            await asyncio.wait_for(seen_back(executor.parts.flusher), 10)
            second.go_on.set()
            await world.state_is(two, "completed")
            events = await other.event(two, "end")
    finally:
        await other.redis.aclose()
        await other.control.close()
        own.stop()
    assert events[0].event == "snapshot"
    assert events[0].data["messages"][0]["content"].startswith("partial text")


async def seen_back(flusher: Flusher) -> None:
    """Return once the flusher has found Redis again."""
    while flusher.away:  # noqa: ASYNC110  # a flag without an event
        await asyncio.sleep(0.01)


async def test_the_buffer_of_an_absent_redis_is_bounded(budget: Budget) -> None:
    """
    1. Redis is away (nothing listens there). A run emits three times what its buffer may hold.
    2. Never more than the bound is kept, and a snapshot is due.
    """
    redis = open_redis("redis://127.0.0.1:1", max_connections=2, client_name="away")
    flusher = Flusher(ProjectionWriter(redis, shards=1, ttl_seconds=60), window_seconds=0.01, window_max_seconds=0.1)
    buffer = RunBuffer(run_id="r", attempt=1, limits=stream_limits(budget), wake=flusher.wake)

    async def alive() -> bool:
        return True

    flusher.join(buffer, lease_alive=alive, superseded=lambda: None)
    task = asyncio.create_task(flusher.run())
    try:
        sink = buffer.open_message("m", {})
        for _ in range(3 * BUFFER_MAX_BYTES // 100_000):
            sink.text("x" * 100_000)
            buffer.emit("custom", b"{}")
            await asyncio.sleep(0)
        assert buffer._pending_bytes <= BUFFER_MAX_BYTES
        assert buffer._snapshot_due
        assert not await flusher.flushed(buffer, seconds=0.1)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await redis.aclose()


async def test_a_retried_append_is_told_apart_from_a_takeover(world: World, budget: Budget) -> None:
    """
    1. A batch was appended and its reply lost; the buffer is in doubt.
    2. The same batch is offered again after reading the last id.
    3. Nothing is doubled, nothing is missing, and the next event follows.
    """
    writer = ProjectionWriter(world.redis, shards=1, ttl_seconds=60)
    buffer = RunBuffer(run_id="retry", attempt=1, limits=stream_limits(budget), wake=lambda *_: None)
    buffer.emit("metadata", b"{}")
    buffer.emit("custom", b"1")
    batch = buffer.take(0.0)
    assert batch is not None
    assert await writer.append([batch]) == [Appended.OK]
    buffer.settle(batch, Appended.AWAY, 0.0)
    assert await writer.append([batch]) == [Appended.NOT_GREATER]
    [last] = await writer.last_ids(["retry"])
    assert buffer.resync(last, 0.0)
    assert buffer.take(0.0) is None
    buffer.emit("custom", b"2")
    following = buffer.take(0.0)
    assert following is not None
    assert [entry.n for entry in following.entries] == [3]
    assert await writer.append([following]) == [Appended.OK]
    await world.redis.delete(events_key("retry"))


async def test_long_streams_carry_snapshots_and_stay_bounded(world: World) -> None:
    """
    1. A run answers with 20,000 words; a snapshot is due every 4 KiB and the stream may hold 64 KiB.
    2. The stream begins with a snapshot, is near its bound, and its ids have no hole.
    """
    words = " ".join(str(number) for number in range(20_000))
    made = await world.run(agent="echo", text=words)
    limits = {"snapshot_every_bytes": 4096, "stream_max_bytes": 65536, "event_max_bytes": 16384, "merge_bytes": 512}
    async with world.executor(agent("echo", echo()), limits=limits):
        await world.state_is(made, "completed")
        events = await world.event(made, "end")
    assert events[0].event in ("snapshot", "metadata")
    numbers = [event.id.n for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.parametrize(("mode", "where"), [("custom", "result"), ("messages", "message")])
async def test_events_over_the_limit_become_markers(budget: Budget, mode: str, where: str) -> None:
    """
    1. An event is larger than 1 MiB.
    2. A typed marker with its size takes its place and says where the whole is.
    """
    buffer = RunBuffer(run_id="r", attempt=1, limits=stream_limits(budget), wake=lambda *_: None)
    data = b'"' + b"x" * 1_048_577 + b'"'
    buffer.emit(mode, data, head={"type": "ai", "id": "m"})
    batch = buffer.take(0.0)
    assert batch is not None
    [entry] = batch.entries
    assert len(entry.data) < 200
    assert b'"truncated":true' in entry.data
    assert f'"where":"{where}"'.encode() in entry.data


async def test_deltas_of_one_message_merge_and_keep_their_order(budget: Budget) -> None:
    """
    1. Two messages stream at once, then a custom event comes, then one of them goes on.
    2. Each message's pieces before the event are one event; the rest follows behind it.
    """
    buffer = RunBuffer(run_id="r", attempt=1, limits=stream_limits(budget), wake=lambda *_: None)
    one, two = buffer.open_message("a", {}), buffer.open_message("b", {})
    one.text("x")
    two.text("1")
    one.text("y")
    two.reasoning("why")
    buffer.emit("custom", b"{}")
    one.text("z")
    one.close(AIMessage("xyz", id="a"))
    batch = buffer.take(0.0)
    assert batch is not None
    told = [entry.data for entry in batch.entries]
    assert [entry.n for entry in batch.entries] == [1, 2, 3, 4]
    assert b'"content":"xy"' in told[0]
    assert b'"content":"1"' in told[1]
    assert b'"reasoning_content":"why"' in told[1]
    assert told[2] == b"{}"
    assert b'"content":"z"' in told[3]


def whole(events: list[Event]) -> str:
    """The text of the run's only message, as a viewer from the beginning has it."""
    text = ""
    for event in events:
        if event.event == "snapshot":
            text = event.data["messages"][0]["content"] if event.data["messages"] else ""
        elif event.event == "messages":
            text += event.data[0]["content"]
    return text


async def test_a_redis_that_hangs_over_the_end_gets_the_whole_text(
    world: World, budget: Budget, tmp_path: Path
) -> None:
    """
    1. Redis is stopped (SIGSTOP) after half of an answer; the rest comes and the run ends without it.
    2. Redis goes on.
    3. The stream holds everything, numbered without a hole up to `end`, and its text is the answer.
    """
    own = Redis.prepare(tmp_path / "redis", choice=servers_choice(), durable=False)
    own.start()
    other = World(world.dsns, own.url, budget)
    talker = Talker()
    pid = int((await other.redis.info("server"))["process_id"])
    try:
        await other.control.open()
        async with other.executor(agent("talker", talker.graph())):
            made = await world.run(agent="talker")
            await asyncio.wait_for(talker.said.wait(), 10)
            await other.event(made, "messages")
            os.kill(pid, signal.SIGSTOP)
            talker.go_on.set()
            row = await world.state_is(made, "completed")
            os.kill(pid, signal.SIGCONT)
            await other.redis.connection_pool.disconnect()
            events = await other.event(made, "end")
    finally:
        os.kill(pid, signal.SIGCONT)
        await other.redis.aclose()
        await other.control.close()
        own.stop()
    assert [event.id.n for event in events] == list(range(1, len(events) + 1))
    assert str(events[-2].id) == row["result_event_id"]
    assert whole(events) == "partial text and the rest"


async def test_an_end_that_redis_never_got_leaves_a_hole_before_the_result(
    world: World, budget: Budget, tmp_path: Path
) -> None:
    """
    1. Redis goes for good after half of an answer; the run completes.
    2. The result's number is not the one after the last that a viewer can have: the relay owes it a snapshot.
    """
    own = Redis.prepare(tmp_path / "redis", choice=servers_choice(), durable=False)
    own.start()
    other = World(world.dsns, own.url, budget)
    talker = Talker()
    try:
        await other.control.open()
        async with other.executor(agent("talker", talker.graph())):
            made = await world.run(agent="talker")
            await asyncio.wait_for(talker.said.wait(), 10)
            seen = (await other.event(made, "messages"))[-1].id
            own.stop()
            talker.go_on.set()
            row = await world.state_is(made, "completed")
    finally:
        await other.redis.aclose()
        await other.control.close()
        own.stop()
    result = EventId.parse(row["result_event_id"])
    assert result.n > seen.n + 1


async def test_dropped_events_leave_a_hole(budget: Budget) -> None:
    """
    1. Redis is away; more custom events come than the buffer may hold.
    2. What is numbered then begins behind a hole, with a snapshot.
    3. The same at the end of the run: `result` follows the snapshot.
    """
    for ended in (False, True):
        buffer = RunBuffer(run_id="r", attempt=1, limits=stream_limits(budget), wake=lambda *_: None)
        buffer.emit("metadata", b"{}")
        first = buffer.take(0.0)
        assert first is not None
        buffer.settle(first, Appended.OK, 0.0)
        for _ in range(5):
            buffer.emit("custom", b"x" * 1_000_000)
        last_n = buffer.freeze() if ended else None
        batch = buffer.take(0.0)
        assert batch is not None
        assert batch.entries[0].n == 3
        assert batch.entries[0].event == "snapshot"
        assert last_n in (None, batch.entries[-1].n)


@pytest.mark.parametrize(("count", "size"), [(50_000, 200), (120, 100_000)])
async def test_a_flood_arrives_whole(world: World, count: int, size: int) -> None:
    """
    1. A node tells many custom events, or returns many large messages, faster than they are sent.
    2. All of them are in the stream, without a hole, and the run did not lose one.
    """

    async def flood(state: MessagesState) -> dict[str, Any]:
        if size > 1000:
            return {"messages": [AIMessage("x" * size, id=f"m{index}") for index in range(count)]}
        write = get_stream_writer()
        for index in range(count):
            write({"index": index, "text": "x" * size})
        return {"messages": [AIMessage("done", id="done")]}

    graph = StateGraph(MessagesState).add_node("flood", flood).add_edge(START, "flood").compile()
    made = await world.run(agent="flood", stream_modes=["custom"])
    limits = {"stream_max_bytes": 1 << 30}
    async with world.executor(agent("flood", graph), limits=limits):
        await world.state_is(made, "completed")
        events = await world.event(made, "end")
    assert [event.id.n for event in events] == list(range(1, len(events) + 1))
    told = [event for event in events if event.event == ("messages" if size > 1000 else "custom")]
    if size > 1000:
        assert [event.data[0]["content"] for event in told] == ["x" * size] * count
    else:
        assert [event.data["index"] for event in told] == list(range(count))
