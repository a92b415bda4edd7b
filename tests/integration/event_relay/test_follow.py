"""Following one run: order, completeness, cursors, access."""

from __future__ import annotations

import asyncio
import random

from headrace_contract.projection import EventId

from tests.integration.event_relay.world import World

EVENTS = 20_000
VIEWERS = 10


async def test_viewers_that_join_anywhere_see_each_event_once_in_order(here: World) -> None:
    """1. A run writes 20,000 events. 2. Ten viewers join while it does, with a cursor or without. 3. Each is shown
    exactly the ids behind its cursor, once, in order, and its stream closes after `end`.
    """
    ids = await here.rows.running()
    writer = here.writer(ids)
    written = [await writer.add("metadata")]
    viewings = []
    dice = random.Random(7)
    joins = dice.sample(range(1, EVENTS // 50), VIEWERS - 1)
    viewings.append(("", here.follow(ids.run_id)))
    for step in range(EVENTS // 50):
        written += await writer.add_many(50, data=b'{"token": "some text of a model"}')
        if step in joins:
            after = dice.choice(["", dice.choice(written), written[-1]])
            viewings.append((after, here.follow(ids.run_id, after=after)))
        if step % 20 == 0:
            await asyncio.sleep(0.03)
    written += [await writer.add("result"), await writer.add("end")]
    for after, viewing in viewings:
        assert await viewing.ended() is None
        start = written.index(after) + 1 if after else 0
        assert viewing.ids == written[start:]


async def test_resume_at_every_position(here: World) -> None:
    """1. A run of two attempts has ended; its stream is whole. 2. From each cursor the rest follows, and only that."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    written = [await writer.add("metadata"), *await writer.add_many(70)]
    writer.at = EventId(2, 0)
    written += [await writer.add("metadata"), await writer.add("snapshot"), *await writer.add_many(5)]
    written += [await writer.add("result"), await writer.add("end")]
    await here.rows.claim(ids, attempt=2)
    await here.rows.end(ids, result=written[-2])
    for position in range(-1, len(written) - 1):
        viewing = here.follow(ids.run_id, after=written[position] if position >= 0 else "")
        assert await viewing.ended() is None
        assert viewing.ids == written[position + 1 :]


async def test_live_events_reach_a_viewer_that_is_up_to_date(here: World) -> None:
    """1. A viewer has seen all. 2. Each further event reaches it, one by one."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    viewing = here.follow(ids.run_id)
    await viewing.count(1)
    for expected in range(2, 6):
        await writer.add()
        await viewing.count(expected)
    assert viewing.ids == ["1-1", "1-2", "1-3", "1-4", "1-5"]


async def test_unknown_malformed_and_foreign_runs_are_told_apart_by_nothing(here: World) -> None:
    """1. Somebody else's run, no run, and no id. 2. All three: NOT_FOUND with the same reason and the same words."""
    ids = await here.rows.running(uid="bob")
    await here.writer(ids).add("metadata")
    nobody = "018f0000-0000-7000-8000-000000000000"
    errors = {run_id: await here.refused(run_id) for run_id in (str(ids.run_id), nobody, "none")}
    for run_id, error in errors.items():
        assert (error.status, error.reason) == ("NOT_FOUND", "RUN_NOT_FOUND")
        assert error.message == f"run {run_id!r} not found"
        assert error.metadata == {"id": run_id}


async def test_cursors_that_cannot_be_are_refused(here: World) -> None:
    """1. A malformed cursor: INVALID_ARGUMENT. 2. At `end`, behind it, in a later attempt: OUT_OF_RANGE."""
    ids = await here.rows.running()
    await here.rows.end(ids, result="1-8")
    for after in ("x", "1", "0-0", "1-0", "1-2-3", "-1", "99999999999-1"):
        error = await here.refused(ids.run_id, after=after)
        assert (error.status, error.reason, error.field) == ("INVALID_ARGUMENT", "CURSOR_MALFORMED", "after")
    for after in ("1-9", "1-10", "2-1"):
        error = await here.refused(ids.run_id, after=after)
        assert (error.status, error.reason) == ("OUT_OF_RANGE", "STREAM_ENDED")
    assert (await here.refused(ids.run_id, modes=["messages-tuple"])).reason == "MODE_UNKNOWN"


async def test_modes_filter_after_the_check_of_continuity(here: World) -> None:
    """1. A viewer wants `messages`. 2. It is shown these and what is always sent, and no reset for what it left out."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    for event in ("metadata", "updates", "messages", "custom", "custom", "messages", "result", "end"):
        await writer.add(event)
    viewing = here.follow(ids.run_id, modes=["messages"])
    assert await viewing.ended() is None
    assert viewing.told == ["1-1 metadata", "1-3 messages", "1-6 messages", "1-7 result", "1-8 end"]


async def test_batches_are_bounded(here: World) -> None:
    """1. Large events are stored. 2. No batch is larger than 1 MiB unless its one event is."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    for _ in range(9):
        await writer.add("custom", "x" * 400_000)
    await writer.add("custom", "x" * 1_200_000)
    await writer.add("end")
    viewing = here.follow(ids.run_id)
    assert await viewing.ended() is None
    assert [event.id for event in viewing.events] == [f"1-{n}" for n in range(1, 13)]
    assert all(size <= 1_048_576 or size == 1_200_002 for size in viewing.sizes)


async def test_a_viewer_that_goes_leaves_nothing(here: World) -> None:
    """1. Twenty viewers of one run. 2. All cancel their calls. 3. The relay holds no stream and no tail."""
    ids = await here.rows.running()
    await here.writer(ids).add("metadata")
    viewings = [here.follow(ids.run_id) for _ in range(20)]
    for viewing in viewings:
        await viewing.count(1)
    assert here.relay.book.viewers == 20
    assert len(here.relay.book.tails) == 1
    for viewing in viewings:
        viewing.call.cancel()
    await here.nobody_follows()
    assert here.relay.book.viewers == 0


async def test_heartbeats_come_evenly_whatever_happens(here: World) -> None:
    """1. A quiet run and a busy one. 2. Both streams carry heartbeats at the same pace."""
    quiet, busy = await here.rows.running(), await here.rows.running()
    writer = here.writer(busy)
    await writer.add("metadata")
    viewings = [here.follow(quiet.run_id), here.follow(busy.run_id)]
    await viewings[1].count(1)
    while min(viewing.beats for viewing in viewings) < 3:
        await writer.add()
        await asyncio.sleep(0.01)
    assert max(viewing.beats for viewing in viewings) <= 4
