"""Answers that would not fit into a gRPC message: pages end early, single values give way to markers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace.run.v1 import run_service_pb2 as pb
from headrace_kit.errors import InvalidArgument
from headrace_kit.postgres import Database
from langgraph.graph import END, START, StateGraph
from run_worker.adapters.saver import PostgresSaver
from typing_extensions import TypedDict

from tests.integration.run_worker_control.world import BODY_BYTES, Client, World, error_of
from tests.support.servers import TestDatabase

MIB = 1024 * 1024
ENLARGE = "UPDATE messages SET content = to_jsonb(repeat('x', $2)) WHERE thread_id = $1"
ADD_CALLS = """
UPDATE messages SET tool_calls = jsonb_build_array(jsonb_build_object('id', 'c', 'name', 'n', 'args', content))
WHERE thread_id = $1
"""
WIDEN = "UPDATE requests SET metadata = jsonb_build_object('m', repeat('x', $2)) WHERE thread_id = $1"


class _State(TypedDict):
    small: str
    large: str


async def _pages(client: Client, name: str, request: Any) -> list[Any]:
    answers = []
    while True:
        answers.append(await client.call(name, request))
        if not answers[-1].next_page_token:
            return answers
        request.page_token = answers[-1].next_page_token


async def test_pages_of_large_messages_end_early(world: World) -> None:
    """1. A transcript has six messages of 1.5 MiB.  2. Its pages hold two each, and all of them once."""
    client = world.client()
    thread_id = await client.thread()
    for number in range(6):
        await client.submit(thread_id, str(number))
    await world.control.execute(ENLARGE, thread_id, 3 * MIB // 2)
    answers = await _pages(client, "ListMessages", pb.ListMessagesRequest(thread_id=thread_id))
    assert [len(answer.messages) for answer in answers] == [2, 2, 2]
    assert len({message.message_id for answer in answers for message in answer.messages}) == 6
    assert all(answer.runs for answer in answers)


async def test_a_message_that_is_too_large_is_told_by_its_size(world: World) -> None:
    """1. Two messages have 9 MiB of content and as much in a tool call.  2. Both are listed, with markers."""
    client = world.client()
    thread_id = await client.thread()
    for number in range(2):
        await client.submit(thread_id, str(number))
    await world.control.execute(ENLARGE, thread_id, 9 * MIB)
    await world.control.execute(ADD_CALLS, thread_id)
    answers = await _pages(client, "ListMessages", pb.ListMessagesRequest(thread_id=thread_id))
    shown = [message for answer in answers for message in answer.messages]
    marker = {"truncated": True, "bytes": 9 * MIB + 2}
    assert [json.loads(message.content) for message in shown] == [marker, marker]
    assert json.loads(shown[0].tool_calls) == [{"id": "c", "name": "n", "args": marker}]


@pytest.mark.parametrize(("name", "cls"), [("ListRuns", pb.ListRunsRequest), ("ListRequests", pb.ListRequestsRequest)])
async def test_pages_of_large_metadata_end_early(world: World, name: str, cls: Any) -> None:
    """1. Ten requests hold 1 MiB of metadata each.  2. Pages of runs and of requests show all, three at a time."""
    client = world.client()
    thread_id = await client.thread()
    for number in range(10):
        await client.submit(thread_id, str(number))
    await world.control.execute(WIDEN, thread_id, MIB)
    answers = await _pages(client, name, cls(thread_id=thread_id))
    found = [item for answer in answers for item in (answer.runs if name == "ListRuns" else answer.requests)]
    assert len(answers) == 4
    assert len({item.run_id for item in found}) == 10


async def test_large_values_of_a_state_give_way(world: World, database: TestDatabase) -> None:
    """1. A graph's state has a small value and one of 9 MiB.  2. The small one is told, and how large the other is."""
    client = world.client()
    thread_id = await client.thread()
    graphs = Database(dsn=database.dsn("graph"), pool_max=2, application="test-graph")
    await graphs.open()
    try:
        builder = StateGraph(_State)
        builder.add_node("write", lambda state: {"small": "s", "large": "x" * (9 * MIB)})
        builder.add_edge(START, "write")
        builder.add_edge("write", END)
        graph = builder.compile(checkpointer=PostgresSaver(graphs))
        await graph.ainvoke({"small": "", "large": ""}, {"configurable": {"thread_id": thread_id}})
    finally:
        await graphs.close()
    state = await client.call("GetThreadState", pb.GetThreadStateRequest(thread_id=thread_id))
    assert json.loads(state.values) == {"small": "s", "large": {"truncated": True, "bytes": 9 * MIB + 2}}


async def test_metadata_of_a_thread_has_a_limit(world: World) -> None:
    """1. Create and change a thread with metadata over the limit of a body.  2. Both are refused."""
    client = world.client()
    large = json.dumps({"m": "x" * BODY_BYTES}).encode()
    thread_id = await client.thread()
    made = await error_of(client.call("CreateThread", pb.CreateThreadRequest(agent="echo", metadata=large)))
    changed = await error_of(client.call("UpdateThread", pb.UpdateThreadRequest(thread_id=thread_id, metadata=large)))
    assert isinstance(made, InvalidArgument)
    assert (made.reason, changed.reason, changed.field) == ("BODY_TOO_LARGE", "BODY_TOO_LARGE", "metadata")


async def test_deleted_threads_leave_no_holes_in_lists(world: World) -> None:
    """1. The newer half of a user's runs is in deleted threads.  2. A page of two shows two of the others, then two."""
    client = world.client()
    kept = [await client.submit(await client.thread()) for _ in range(4)]
    for _ in range(4):
        thread_id = await client.thread()
        await client.submit(thread_id)
        await client.submit(thread_id)
        await client.call("DeleteThread", pb.DeleteThreadRequest(thread_id=thread_id, cancel=True))
    answers = await _pages(client, "ListRuns", pb.ListRunsRequest(page_size=2))
    assert [[run.run_id for run in answer.runs] for answer in answers] == [
        [kept[3].run_id, kept[2].run_id],
        [kept[1].run_id, kept[0].run_id],
    ]


async def test_the_key_of_a_deleted_thread_says_so(world: World) -> None:
    """1. A thread and a request in it are made by keys; the thread is deleted.  2. Both keys again: ALREADY_EXISTS, and
    the reason says that the thread was deleted.
    """
    client = world.client()
    new = pb.CreateThreadRequest(agent="echo", idempotency_key="thread")
    thread_id = (await client.call("CreateThread", new)).thread.thread_id
    await client.submit(thread_id, idempotency_key="request")
    await client.call("DeleteThread", pb.DeleteThreadRequest(thread_id=thread_id, cancel=True))
    for call in (client.call("CreateThread", new), client.submit(thread_id, idempotency_key="request")):
        error = await error_of(call)
        assert (error.status, error.reason) == ("ALREADY_EXISTS", "THREAD_DELETED")
        assert error.metadata == {"thread_id": thread_id}
