"""Reading: pages, isolation of users, the transcript, results, states."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb
from headrace_kit.errors import AlreadyExists, InvalidArgument, NotFound, ServiceError
from headrace_kit.postgres import Database
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from run_worker.adapters.saver import PostgresSaver

from tests.integration.run_worker_control.world import Client, World, error_of
from tests.support.servers import TestDatabase

BY_THREAD: list[tuple[str, Any]] = [
    ("GetThread", pb.GetThreadRequest),
    ("UpdateThread", pb.UpdateThreadRequest),
    ("DeleteThread", pb.DeleteThreadRequest),
    ("ListMessages", pb.ListMessagesRequest),
    ("GetThreadState", pb.GetThreadStateRequest),
    ("ListRequests", pb.ListRequestsRequest),
    ("ContinueThread", pb.ContinueThreadRequest),
]
BY_RUN: list[tuple[str, Any]] = [
    ("GetRun", pb.GetRunRequest),
    ("CancelRun", pb.CancelRunRequest),
    ("GetRunResult", pb.GetRunResultRequest),
    ("WaitRun", pb.WaitRunRequest),
]
BY_REQUEST: list[tuple[str, Any]] = [
    ("GetRequest", pb.GetRequestRequest),
    ("CancelRequest", pb.CancelRequestRequest),
]
LISTS: list[tuple[str, Any]] = [
    ("ListThreads", pb.ListThreadsRequest),
    ("ListRuns", pb.ListRunsRequest),
    ("ListAgents", pb.ListAgentsRequest),
]


async def test_another_users_objects_are_missing(world: World) -> None:
    """1. A user submits.  2. Another one calls all by those ids: the same NOT_FOUND as for ids that never were."""
    owner, other = world.client(), world.client()
    thread_id = await owner.thread()
    request = await owner.submit(thread_id)
    cases = [(name, cls, "thread_id", thread_id) for name, cls in BY_THREAD]
    cases += [(name, cls, "run_id", request.run_id) for name, cls in BY_RUN]
    cases += [(name, cls, "request_id", request.request_id) for name, cls in BY_REQUEST]
    for name, cls, field, there in cases:
        never = str(uuid4())
        foreign = await error_of(other.call(name, cls(**{field: there})))
        missing = await error_of(other.call(name, cls(**{field: never})))
        assert isinstance(foreign, NotFound), name
        assert _told(foreign, there) == _told(missing, never), name
        assert isinstance(await error_of(other.call(name, cls(**{field: "no-uuid"}))), NotFound), name
    assert (await owner.run(request.run_id)).state == run_pb2.Run.STATE_PENDING


async def test_pages_hold_everything_once(world: World) -> None:
    """1. Make five threads and five requests in one.  2. Pages of two show each thread, run, request, message once."""
    client = world.client()
    threads = [await client.thread() for _ in range(5)]
    requests = [await client.submit(threads[0], str(number)) for number in range(5)]
    shown = await _all(client, "ListThreads", pb.ListThreadsRequest(), "threads", "thread_id")
    runs = await _all(client, "ListRuns", pb.ListRunsRequest(), "runs", "run_id")
    asked = await _all(client, "ListRequests", pb.ListRequestsRequest(thread_id=threads[0]), "requests", "request_id")
    texts = await _all(client, "ListMessages", pb.ListMessagesRequest(thread_id=threads[0]), "messages", "content")
    assert shown == [threads[0], *reversed(threads[1:])]
    assert runs == [request.run_id for request in reversed(requests)]
    assert asked == [request.request_id for request in reversed(requests)]
    assert texts == [b'"%d"' % number for number in range(5)]


async def test_runs_are_listed_by_thread_and_state(world: World) -> None:
    """1. One thread holds a pending and a queued run, another one a cancelled.  2. Filters choose among them."""
    client = world.client()
    one, two = await client.thread(), await client.thread()
    pending, queued = await client.submit(one), await client.submit(one)
    cancelled = await client.submit(two)
    await client.cancel(cancelled.run_id)

    async def listed(**fields: Any) -> list[str]:
        answer = await client.call("ListRuns", pb.ListRunsRequest(**fields))
        return [run.run_id for run in answer.runs]

    assert await listed(thread_id=one) == [queued.run_id, pending.run_id]
    assert await listed(states=[run_pb2.Run.STATE_QUEUED]) == [queued.run_id]
    assert await listed(states=[run_pb2.Run.STATE_CANCELLED, run_pb2.Run.STATE_FAILED]) == [cancelled.run_id]


@pytest.mark.parametrize(("name", "cls"), LISTS)
async def test_wrong_pages_are_refused(world: World, name: str, cls: Any) -> None:
    """1. Ask with a token of nobody's, then with a negative size.  2. INVALID_ARGUMENT names the field.
    3. A size over the maximum is taken as the maximum.
    """
    client = world.client()
    for token in ("x", "AAAA", "W10", "WyJhIiwxXQ", "ü", "a" * 2000):
        error = await error_of(client.call(name, cls(page_token=token)))
        assert isinstance(error, InvalidArgument), token
        assert (error.field, error.reason) == ("page_token", "PAGE_TOKEN_INVALID")
    error = await error_of(client.call(name, cls(page_size=-1)))
    assert isinstance(error, InvalidArgument)
    assert error.field == "page_size"
    await client.call(name, cls(page_size=100_000))


async def test_a_token_is_of_its_list_and_filter(world: World) -> None:
    """1. Take the tokens of a user's threads, runs, requests and messages.  2. Each goes on with its own list only:
    another list, other filters, another thread and another user refuse it.
    """
    client, other = world.client(), world.client()
    threads = [await client.thread() for _ in range(2)]
    for _ in range(2):
        await client.submit(threads[0])
    await other.thread()
    pending = {"states": [run_pb2.Run.STATE_PENDING, run_pb2.Run.STATE_QUEUED]}
    lists: list[tuple[str, Any, dict[str, Any]]] = [
        ("ListThreads", pb.ListThreadsRequest, {}),
        ("ListRuns", pb.ListRunsRequest, {}),
        ("ListRuns", pb.ListRunsRequest, {"thread_id": threads[0]}),
        ("ListRuns", pb.ListRunsRequest, pending),
        ("ListRequests", pb.ListRequestsRequest, {"thread_id": threads[0]}),
        ("ListMessages", pb.ListMessagesRequest, {"thread_id": threads[0]}),
    ]
    tokens = [(await client.call(name, cls(page_size=1, **fields))).next_page_token for name, cls, fields in lists]
    assert all(tokens)
    for place, (name, cls, fields) in enumerate(lists):
        for whose, token in enumerate(tokens):
            call = client.call(name, cls(page_token=token, **fields))
            if whose == place:
                await call
            else:
                assert (await error_of(call)).reason == "PAGE_TOKEN_INVALID", (name, fields, whose)
    foreign = await error_of(other.call("ListThreads", pb.ListThreadsRequest(page_token=tokens[0])))
    assert foreign.reason == "PAGE_TOKEN_INVALID"
    mirrored = pb.ListRunsRequest(page_token=tokens[3], states=pending["states"][::-1])
    await client.call("ListRuns", mirrored)


async def test_threads_are_created_once_by_key_and_changed(world: World) -> None:
    """1. Create with key and id, twice.  2. Another body is refused; so is the id again, and an unknown agent.
    3. Title and metadata change one by one.
    """
    client = world.client()
    chosen = str(uuid4())
    new = pb.CreateThreadRequest(agent="echo", title="t", metadata=b'{"a": 1}', idempotency_key="k", thread_id=chosen)
    first, again = await client.call("CreateThread", new), await client.call("CreateThread", new)
    other = await error_of(client.call("CreateThread", pb.CreateThreadRequest(agent="echo", idempotency_key="k")))
    taken = await error_of(client.call("CreateThread", pb.CreateThreadRequest(agent="echo", thread_id=chosen)))
    unknown = await error_of(client.call("CreateThread", pb.CreateThreadRequest(agent="nobody")))
    await client.call("UpdateThread", pb.UpdateThreadRequest(thread_id=chosen, title="u"))
    changed = await client.call("UpdateThread", pb.UpdateThreadRequest(thread_id=chosen, metadata=b'{"b": 2}'))
    assert first.thread == again.thread
    assert first.thread.thread_id == chosen
    assert isinstance(other, AlreadyExists)
    assert (other.reason, taken.reason) == ("IDEMPOTENCY_KEY_REUSED", "THREAD_EXISTS")
    assert (unknown.reason, unknown.field) == ("AGENT_NOT_FOUND", "agent")
    assert (changed.thread.title, changed.thread.metadata) == ("u", b'{"b": 2}')


async def test_agents_are_those_of_live_executors(world: World) -> None:
    """1. One agent was published before the oldest live executor started, one with it, one after.
    2. The last two are listed.
    """
    client = world.client()
    await world.control.execute("UPDATE executors SET exited_at = now() WHERE exited_at IS NULL")
    await world.control.execute("INSERT INTO agents (name, digest) VALUES ('removed', 'd')")
    await world.add_executor()
    await world.control.execute("INSERT INTO agents (name, digest) VALUES ('there', 'd')")
    answer = await client.call("ListAgents", pb.ListAgentsRequest())
    assert [agent.name for agent in answer.agents] == ["echo", "there"]


async def test_history_and_result_say_the_same(world: World) -> None:
    """1. A run completes.  2. History, run and result carry its timing alike; the result holds the output."""
    client = world.client()
    executor = await world.add_executor()
    thread_id = await client.thread()
    request = await client.submit(thread_id, "question")
    await world.end(await world.claim_one(executor, request.run_id), executor, text="answer")
    run = await client.run(request.run_id)
    page = await client.call("ListMessages", pb.ListMessagesRequest(thread_id=thread_id))
    result = await client.call("GetRunResult", pb.GetRunResultRequest(run_id=request.run_id))
    assert [(m.role, m.content) for m in page.messages] == [("user", b'"question"'), ("assistant", b'"answer"')]
    assert list(page.runs) == [run] == [result.run]
    assert (result.output.content, result.output.message_id) == (b'"answer"', run.output_message_id)
    assert run.timing.total_latency_ms >= run.timing.dispatch_latency_ms >= 0
    assert run.timing.HasField("finished_at")
    assert not run.timing.HasField("prepared_at")


async def test_the_state_is_the_latest_checkpoints(world: World, database: TestDatabase) -> None:
    """1. A thread has no state.  2. A real graph stops before its second node.  3. Values and next node are told."""
    client = world.client()
    thread_id = await client.thread()
    empty = await client.call("GetThreadState", pb.GetThreadStateRequest(thread_id=thread_id))
    graphs = Database(dsn=database.dsn("graph"), pool_max=2, application="test-graph")
    await graphs.open()
    try:
        builder = StateGraph(MessagesState)
        builder.add_node("answer", lambda state: {"messages": [AIMessage("yes", id="a")]})
        builder.add_node("more", lambda state: {})
        builder.add_edge(START, "answer")
        builder.add_edge("answer", "more")
        builder.add_edge("more", END)
        graph = builder.compile(checkpointer=PostgresSaver(graphs), interrupt_before=["more"])
        await graph.ainvoke({"messages": [HumanMessage("well?", id="h")]}, {"configurable": {"thread_id": thread_id}})
    finally:
        await graphs.close()
    state = await client.call("GetThreadState", pb.GetThreadStateRequest(thread_id=thread_id))
    assert (empty.values, empty.checkpoint_id) == (b"{}", "")
    assert b'"content":"yes"' in state.values
    assert b"__" not in state.values
    assert list(state.next) == ["more"]
    assert state.checkpoint_id


async def _all(client: Client, name: str, request: Any, items: str, field: str) -> list[Any]:
    found: list[Any] = []
    request.page_size = 2
    while True:
        answer = await client.call(name, request)
        found += [getattr(item, field) for item in getattr(answer, items)]
        if not answer.next_page_token:
            return found
        request.page_token = answer.next_page_token


def _told(error: ServiceError, object_id: str) -> tuple[Any, ...]:
    told = (error.status, error.reason, error.message, error.metadata, error.field)
    return tuple(str(part).replace(object_id, "ID") for part in told)
