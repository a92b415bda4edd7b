from __future__ import annotations

import asyncio

import orjson

from tests.integration.run_worker_executor.graphs import Talker, echo
from tests.integration.run_worker_executor.harness import World, agent


async def test_echo_completes_with_ordered_times_and_contiguous_events(world: World) -> None:
    """
    1. A run of the echo agent is pending.
    2. An executor claims and executes it.
    3. It is completed with its message, all five times are there and ordered, and the event ids have no hole.
    """
    made = await world.run(agent="echo", text="one two three")
    async with world.executor(agent("echo", echo())):
        row = await world.state_is(made, "completed", "failed")
        events = await world.event(made, "end")

    assert row["state"] == "completed", row["error"]
    times = [row[k] for k in ("created_at", "started_at", "prepared_at", "first_output_at", "finished_at")]
    assert None not in times
    assert times == sorted(times)
    assert [str(e.id) for e in events] == [f"1-{n}" for n in range(1, len(events) + 1)]
    assert events[0].event == "metadata"
    assert [e.event for e in events][-2:] == ["result", "end"]
    assert (row["result_event_id"], row["end_event_id"]) == (str(events[-2].id), str(events[-1].id))
    told = "".join(e.data[0]["content"] for e in events if e.event == "messages")
    assert told == "one two three "
    [message] = await world.messages(made.thread_id)
    assert (message["message_id"], message["content"]) == (row["output_message_id"], "one two three")
    assert events[-2].data["timing"] == orjson.loads(row["timing"])


async def test_cancel_in_mid_stream_keeps_the_partial_text(world: World) -> None:
    """
    1. A run has told half of its answer.
    2. A cancel is committed, without key and without hint.
    3. It ends cancelled; the half is a partial message of the transcript, and the next run finds it in the checkpoint.
    """
    talker = Talker()
    made = await world.run(agent="talker")
    async with world.executor(agent("talker", talker.graph()), agent("echo", echo())):
        await asyncio.wait_for(talker.said.wait(), 10)
        await world.cancel(made)
        row = await world.state_is(made, "cancelled", "completed", "failed")
        events = await world.event(made, "end")
        assert row["state"] == "cancelled"
        assert talker.cancelled
        assert events[-1].data == {"status": "cancelled"}
        [message] = await world.messages(made.thread_id)
        assert (message["content"], message["partial"]) == ("partial text", True)

        following = await world.request(made.thread_id, agent="echo", text="again")
        await world.state_is(following, "completed", "failed")
        blobs = await world.control.fetch("SELECT count(*) FROM checkpoints WHERE thread_id = $1", str(made.thread_id))
        assert blobs[0]["count"] > 0
        answers = [m for m in await world.messages(made.thread_id) if m["content"] == "again"]
        # Its id counts what the graph saw: the first question, the half answer, the second question.
        assert answers[0]["message_id"].startswith("echo-3-")
