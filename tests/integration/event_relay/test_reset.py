"""Where continuity cannot be promised, a viewer is told, and shown a whole picture again."""

from __future__ import annotations

from headrace_contract.projection import EventId

from tests.integration.event_relay.world import Viewing, World, Writer


async def _run_with_snapshot(here: World) -> tuple[str, Writer]:
    """A live run: 1-1 metadata, 1-2 to 1-11 custom, 1-12 snapshot, 1-13 to 1-17 custom."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    await writer.add_many(10)
    await writer.add("snapshot")
    await writer.add_many(5)
    return str(ids.run_id), writer


def _from_snapshot(reason: str) -> list[str]:
    return [reason, "1-12 snapshot", *[f"1-{n} custom" for n in range(13, 18)]]


async def _told(viewing: Viewing, expected: list[str]) -> None:
    await viewing.count(len(expected))
    assert viewing.told == expected


async def test_a_trimmed_cursor_is_reset_to_the_newest_snapshot(here: World) -> None:
    """1. The stream is trimmed to its snapshot. 2. A cursor before it: reset {trimmed}, the snapshot, and on."""
    run_id, writer = await _run_with_snapshot(here)
    await here.redis.xtrim(writer.key, minid="1-12", approximate=False)
    viewing = here.follow(run_id, after="1-4")
    await _told(viewing, _from_snapshot("reset"))
    assert viewing.data("reset") == [{"reason": "trimmed"}]
    await writer.add()
    await viewing.count(8)
    assert viewing.ids[-1] == "1-18"


async def test_a_cursor_right_before_the_trimmed_place_misses_nothing(here: World) -> None:
    """1. Trimmed to 1-12. 2. A viewer that has 1-11 goes on at 1-12 without a reset. 3. A new one begins there."""
    run_id, writer = await _run_with_snapshot(here)
    await here.redis.xtrim(writer.key, minid="1-12", approximate=False)
    for after in ("1-11", ""):
        await _told(here.follow(run_id, after=after), _from_snapshot("")[1:])


async def test_an_unknown_cursor_is_reset(here: World) -> None:
    """1. Cursors that no event of this run has, behind its last and in a later attempt. 2. reset {unknown_cursor}."""
    run_id, _ = await _run_with_snapshot(here)
    for after in ("1-99", "2-3"):
        viewing = here.follow(run_id, after=after)
        await _told(viewing, _from_snapshot("reset"))
        assert viewing.data("reset") == [{"reason": "unknown_cursor"}]


async def test_an_unknown_cursor_without_a_snapshot_begins_at_the_beginning(here: World) -> None:
    """1. A young stream without snapshot. 2. An unknown cursor: reset, then metadata and everything."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    await writer.add()
    await _told(here.follow(ids.run_id, after="1-40"), ["reset", "1-1 metadata", "1-2 custom"])


async def test_a_gap_is_told_at_once(here: World) -> None:
    """1. A viewer has all. 2. A number is missing. 3. reset {gap}, the newest snapshot, what follows, and on."""
    run_id, writer = await _run_with_snapshot(here)
    viewing = here.follow(run_id, after="1-17")
    writer.skip(1)
    await writer.add()
    await writer.add()
    await _told(viewing, [*_from_snapshot("reset"), "1-19 custom", "1-20 custom"])
    assert viewing.data("reset") == [{"reason": "gap"}]


async def test_a_gap_without_a_snapshot_is_told_once(here: World) -> None:
    """1. A stream with a hole and no snapshot. 2. reset {gap}, everything from the beginning, no second reset."""
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    await writer.add()
    writer.skip(1)
    await writer.add()
    viewing = here.follow(ids.run_id)
    first = ["1-1 metadata", "1-2 custom"]
    await _told(viewing, [*first, "reset", *first, "1-4 custom"])
    await writer.add()
    await viewing.count(7)
    assert viewing.told[-1] == "1-5 custom"


async def test_a_filtered_viewer_is_told_of_a_gap_in_what_it_did_not_want(here: World) -> None:
    """1. A viewer of `messages`. 2. A `custom` is missing. 3. It is reset all the same."""
    run_id, writer = await _run_with_snapshot(here)
    viewing = here.follow(run_id, after="1-17", modes=["messages"])
    writer.skip(1)
    await writer.add("messages")
    await _told(viewing, ["reset", "1-12 snapshot", "1-19 messages"])


async def test_a_new_attempt_begins_at_one(here: World) -> None:
    """1. Attempt 2 follows attempt 1: no reset. 2. Attempt 3 whose first event is missing: reset {gap}."""
    run_id, writer = await _run_with_snapshot(here)
    viewing = here.follow(run_id, after="1-17")
    writer.at = EventId(2, 0)
    await writer.add("metadata")
    await writer.add("snapshot")
    await viewing.count(2)
    writer.at = EventId(3, 1)
    await writer.add("snapshot")
    await _told(viewing, ["2-1 metadata", "2-2 snapshot", "reset", "3-2 snapshot"])


async def test_a_lost_stream_that_goes_on_with_a_snapshot(here: World) -> None:
    """1. A viewer has all; the stream is deleted and the relay notices. 2. The owner begins again with a snapshot.
    3. The viewer is told reset {lost} together with it. 4. One that comes with its old cursor is told the same.
    """
    run_id, writer = await _run_with_snapshot(here)
    viewing = here.follow(run_id, after="1-16")
    await viewing.count(1)
    tail = await here.tail(run_id)
    await here.redis.delete(writer.key)
    await viewing.until(lambda _: tail.losses == 1)
    late = await here.follow(run_id, after="1-9").until(lambda v: v.beats > 0)
    assert viewing.told == ["1-17 custom"]
    writer.skip(3)
    await writer.add("snapshot")
    await writer.add()
    await _told(viewing, ["1-17 custom", "reset", "1-21 snapshot", "1-22 custom"])
    await _told(late, ["reset", "1-21 snapshot", "1-22 custom"])
    assert viewing.data("reset") == late.data("reset") == [{"reason": "lost"}]


async def test_a_lost_stream_that_goes_on_without_a_snapshot(here: World) -> None:
    """1. The stream is deleted, noticed, and written on without a snapshot. 2. reset {lost}, then what there is."""
    run_id, writer = await _run_with_snapshot(here)
    viewing = here.follow(run_id, after="1-17")
    tail = await here.tail(run_id)
    await here.redis.delete(writer.key)
    await viewing.until(lambda _: tail.losses == 1)
    await writer.add()
    await _told(viewing, ["reset", "1-18 custom"])


async def test_a_stream_that_is_deleted_and_written_on_unnoticed_shows_its_hole(here: World) -> None:
    """1. The stream is deleted and begun again with a snapshot behind a hole, faster than anybody looks. 2. reset."""
    run_id, writer = await _run_with_snapshot(here)
    viewing = here.follow(run_id, after="1-16")
    await viewing.count(1)
    await here.redis.delete(writer.key)
    writer.skip(2)
    await writer.add("snapshot")
    await _told(viewing, ["1-17 custom", "reset", "1-20 snapshot"])


async def test_a_foreign_entry_harms_no_other_run(here: World) -> None:
    """1. Somebody writes an entry that no owner would into a stream. 2. Its viewer is reset and shown what there
    is. 3. The tails of all runs go on.
    """
    run_id, writer = await _run_with_snapshot(here)
    other_id, other = await _run_with_snapshot(here)
    viewings = [here.follow(run_id, after="1-17"), here.follow(other_id, after="1-17")]
    await here.redis.xadd(writer.key, {"foreign": "field"}, id="1733000000000-7")
    await viewings[0].count(8)
    assert viewings[0].told[0] == "reset"
    await other.add()
    await _told(viewings[1], ["1-18 custom"])


async def test_a_new_viewer_of_a_lost_stream_is_not_reset(here: World) -> None:
    """1. A viewer without a cursor waits for a run's stream. 2. It begins at its snapshot, without a reset."""
    ids = await here.rows.running()
    viewing = here.follow(ids.run_id)
    writer = here.writer(ids)
    writer.skip(30)
    await writer.add("snapshot")
    await _told(viewing, ["1-31 snapshot"])
