"""The end of a run is always told: by its stream, or from PostgreSQL under the stored ids."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from event_relay.settings import RelaySettings

from tests.integration.event_relay.world import Ids, World, world
from tests.support.servers import TestDatabase


async def test_a_run_that_ended_a_day_ago_is_told_from_postgresql_at_once(
    relay_settings: RelaySettings, database: TestDatabase, budget_path: Path
) -> None:
    """1. A relay with production's figures; a run ended a day ago; nothing of it is in Redis. 2. Its messages, result
    and end come at once, not after a probe.
    """
    patient = relay_settings.model_copy(update={"budget_file": budget_path})
    async with world(patient, admin_dsn=database.admin_dsn) as here:
        ids = await here.rows.running()
        await here.rows.end(ids, result="1-57", seconds_ago=86_400, text="the answer")
        async with asyncio.timeout(3):  # a probe comes after up to 5 s
            viewing = await here.follow(ids.run_id).rest()
    assert viewing.told == ["snapshot", "1-57 result", "1-58 end"]
    (snapshot,), (result,), (end,) = viewing.data("snapshot"), viewing.data("result"), viewing.data("end")
    assert [message["content"] for message in snapshot["messages"]] == ["the answer"]
    assert snapshot["interrupts"] == []
    assert (result["run_id"], result["status"], end) == (str(ids.run_id), "completed", {"status": "completed"})
    assert result["timing"]["total_latency_ms"] is not None


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ("1-20", ["reset", "snapshot", "1-57 result", "1-58 end"]),
        ("1-56", ["1-57 result", "1-58 end"]),
        ("1-57", ["1-58 end"]),
    ],
)
async def test_a_viewer_is_told_what_it_lacks_of_an_end(here: World, after: str, told: list[str]) -> None:
    """1. The run has ended, Redis is empty. 2. By its cursor a viewer gets what it has not had, and no more."""
    ids = await here.rows.running()
    await here.rows.end(ids, result="1-57")
    assert (await here.follow(ids.run_id, after=after).rest()).told == told


async def test_an_end_that_never_reached_the_stream_is_told_from_postgresql(here: World) -> None:
    """1. A viewer has all of a live run. 2. The run ends; its owner dies before it appends. 3. result and end come."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    await writer.add("messages")
    viewing = here.follow(ids.run_id)
    await viewing.count(2)
    await here.rows.end(ids, result="1-3", seconds_ago=0)
    assert (await viewing.rest()).told == ["1-1 metadata", "1-2 messages", "1-3 result", "1-4 end"]


async def test_the_end_in_the_stream_wins(here: World) -> None:
    """1. The run is long terminal, the stream was behind. 2. All of it is shown, none of it from PostgreSQL."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    await here.rows.end(ids, result="1-150")
    await writer.add_many(148)
    await writer.add("result", {"from": "stream"})
    await writer.add("end", {"from": "stream"})
    viewing = await here.follow(ids.run_id).rest()
    assert viewing.ids == [f"1-{n}" for n in range(1, 152)]
    assert viewing.data("result") == viewing.data("end") == [{"from": "stream"}]


async def test_no_end_is_told_while_the_fence_is_up(here: World) -> None:
    """1. A terminal run with clean-up pending. 2. Probes go by: no end. 3. The fence clears: the end comes."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    await writer.add("result")
    await here.rows.end(ids, result="1-2", fenced=True)
    viewing = here.follow(ids.run_id)
    await viewing.until(lambda v: v.beats >= 3)
    assert viewing.told == ["1-1 metadata", "1-2 result"]
    await here.rows.clear_fence(ids)
    assert (await viewing.rest()).told == ["1-1 metadata", "1-2 result", "1-3 end"]


async def test_a_young_end_is_left_to_its_owner(here: World) -> None:
    """1. A run ended just now. 2. The owner's end, which comes a moment later, is the one that is shown."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    await here.rows.end(ids, result="1-2", seconds_ago=0)
    viewing = here.follow(ids.run_id)
    await viewing.count(1)
    await writer.add("result", {"from": "owner"})
    await writer.add("end", {"from": "owner"})
    assert (await viewing.rest()).data("end") == [{"from": "owner"}]


async def test_a_run_ended_by_control_under_a_new_attempt(here: World) -> None:
    """1. A viewer has part of attempt 1. 2. Control ends it as attempt 2, none of it in Redis. 3. All is told."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    viewing = here.follow(ids.run_id)
    await viewing.count(1)
    await here.rows.end(ids, result="2-3", seconds_ago=10)
    assert (await viewing.rest()).told == ["1-1 metadata", "reset", "snapshot", "2-3 result", "2-4 end"]


async def test_a_request_that_was_cancelled_before_it_became_a_run(here: World) -> None:
    """1. A queued request is followed by its run_id. 2. It is cancelled. 3. Its end comes under 1-1 and 1-2."""
    ids = await here.rows.queued()
    viewing = here.follow(ids.run_id)
    await viewing.count(1)
    await here.rows.cancel_request(ids)
    assert (await viewing.rest()).told == ["queue", "snapshot", "1-1 result", "1-2 end"]
    assert viewing.data("end") == [{"status": "cancelled"}]


async def test_a_deleted_thread_ends_its_streams(here: World) -> None:
    """1. A run is followed. 2. Its thread is deleted. 3. The stream ends as if it had never been: NOT_FOUND."""
    ids = await here.rows.running()
    await here.writer(ids).add("metadata")
    viewing = here.follow(ids.run_id)
    await viewing.count(1)
    await here.rows.delete_thread(ids.thread_id)
    error = await viewing.ended()
    assert error is not None
    assert (error.status, error.reason) == ("NOT_FOUND", "RUN_NOT_FOUND")
    assert (await here.refused(ids.run_id)).reason == "RUN_NOT_FOUND"


async def test_waiting_runs_are_told_where_they_wait(here: World) -> None:
    """1. Two requests wait behind a run. 2. Each viewer is told its position. 3. The first is dispatched: the second
    moves up, and is told; the first waits for a slot. 4. Nothing is told twice. 5. Once it runs, events follow.
    """
    active = await here.rows.running()
    first, second = [await here.rows.queued(thread_id=active.thread_id) for _ in range(2)]
    ahead, behind = here.follow(first.run_id), here.follow(second.run_id)
    await ahead.count(1)
    await behind.count(1)
    assert ahead.data("queue")[0] == {
        "position": 1,
        "wait_reason": "behind_run",
        "since": ahead.data("queue")[0]["since"],
        "run_id": str(active.run_id),
    }
    assert behind.data("queue")[0]["position"] == 2
    await ahead.until(lambda v: v.beats >= 3)
    await here.rows.end(active, result="1-2")
    await here.rows.dispatch(first)
    await ahead.count(2)
    await behind.until(lambda v: v.data("queue")[-1]["position"] == 1)
    assert [queue["wait_reason"] for queue in ahead.data("queue")] == ["behind_run", "no_slot"]
    await here.rows.claim(first)
    await here.writer(first).add("metadata")
    await ahead.count(3)
    assert ahead.told == ["queue", "queue", "1-1 metadata"]


async def test_a_run_on_its_way_to_its_claim_waits_for_nothing(here: World) -> None:
    """1. A run is pending since just now. 2. Its viewer is told nothing but that the stream lives. 3. It is pending for
    a second: the viewer is told that it waits for a slot, since it became pending.
    """
    ids = await here.rows.queued()
    await here.rows.dispatch(ids)
    viewing = here.follow(ids.run_id)
    await viewing.until(lambda v: v.beats >= 1)
    assert viewing.told == []
    await viewing.count(1)
    [queue] = viewing.data("queue")
    assert (queue["wait_reason"], queue["position"]) == ("no_slot", 0)
    waited = datetime.now(UTC) - datetime.fromisoformat(queue["since"])
    assert waited >= timedelta(seconds=1)


async def test_many_ends_of_lost_streams_are_told_together(here: World) -> None:
    """1. Thirty runs are followed and end, none with an end in Redis. 2. All viewers are told within a few probes."""
    runs: list[Ids] = [await here.rows.running() for _ in range(30)]
    for ids in runs:
        await here.writer(ids).add("metadata")
    viewings = [here.follow(ids.run_id) for ids in runs]
    for viewing in viewings:
        await viewing.count(1)
    for ids in runs:
        await here.rows.end(ids, result="1-2", seconds_ago=1)
    async with asyncio.timeout(3):
        for viewing in viewings:
            assert (await viewing.rest()).told == ["1-1 metadata", "1-2 result", "1-3 end"]
