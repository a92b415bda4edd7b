"""What the saver stores and reads: values exactly, the latest by the database's order, few statements, in parallel."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from headrace_kit.postgres import Database
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import ChannelVersions, CheckpointMetadata, empty_checkpoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from run_worker.adapters.saver import PostgresSaver

from .conftest import Connection, OwnedRun, until_waiting

METADATA: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}}


def place(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


class Colour(enum.StrEnum):
    RED = "red"


async def test_values_come_back_exactly(graph_database: Database) -> None:
    """1. Channels hold values that JSON would change or PostgreSQL refuse. 2. Each comes back, type and all."""
    values: dict[str, Any] = {
        "none": None,
        "true": True,
        "int": -5,
        "huge": 2**60,
        "float": 1.0,
        "exponent": 1e22,
        "nan_free": 0.1,
        "text": "Grüße 🌊",
        "nul": "a\x00b",
        "long": "x" * 10_000,
        "enum": Colour.RED,
        "list": [1, "a\x00"],
        "message": HumanMessage("hi", id="m1"),
    }
    saver = PostgresSaver(graph_database)
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, "1")

    await saver.aput(place("exact"), checkpoint, METADATA, checkpoint["channel_versions"])

    found = await saver.aget_tuple(place("exact"))
    assert found is not None
    back = found.checkpoint["channel_values"]
    assert back == values
    assert {name: type(value) for name, value in back.items()} == {name: type(value) for name, value in values.items()}


async def test_metadata_that_postgresql_refuses_is_replaced(graph_database: Database) -> None:
    """1. Metadata holds NUL, half a surrogate pair and NaN, also deep inside. 2. It is stored, and can be found."""
    saver = PostgresSaver(graph_database)
    config = place("metadata")
    config["metadata"] = {"who": "x\ud800", "odd": float("nan")}
    metadata: Any = {**METADATA, "deep": {"k\x00": ["v\x00"]}}

    await saver.aput(config, empty_checkpoint(), metadata, {})

    (found,) = [one async for one in saver.alist(place("metadata"), filter={"who": "x\ufffd"})]
    seen: Any = found.metadata
    assert seen["deep"] == {"k\ufffd": ["v\ufffd"]}
    assert seen["odd"] is None


async def test_latest_is_the_databases_order(graph_database: Database) -> None:
    """1. A host whose clock is behind stores a checkpoint after another's. 2. The one stored last is the latest.

    3. `alist` has the same order and pages through a long history.
    """
    saver = PostgresSaver(graph_database)
    ids = [f"{9999 - number:08}" for number in range(150)]
    for checkpoint_id in ids:
        checkpoint = empty_checkpoint()
        checkpoint["id"] = checkpoint_id
        await saver.aput(place("order"), checkpoint, METADATA, {})

    latest = await saver.aget_tuple(place("order"))
    listed = [one.checkpoint["id"] async for one in saver.alist(place("order"))]
    before: Any = {"configurable": {"thread_id": "order", "checkpoint_ns": "", "checkpoint_id": ids[10]}}
    older = [one.checkpoint["id"] async for one in saver.alist(place("order"), before=before, limit=3)]

    assert latest is not None
    assert latest.checkpoint["id"] == ids[-1]
    assert listed == ids[::-1]
    assert older == [ids[9], ids[8], ids[7]]


async def test_writes_come_in_the_order_of_tasks(graph_database: Database) -> None:
    """1. Two parallel tasks store their writes in the wrong order. 2. They are read by path, task and index."""
    saver = PostgresSaver(graph_database)
    stored = await saver.aput(place("writes"), empty_checkpoint(), METADATA, {})

    await saver.aput_writes(stored, [("c", 3), ("c", 4)], "a-task", "~b")
    await saver.aput_writes(stored, [("c", 1), ("c", 2)], "b-task", "~a")

    found = await saver.aget_tuple(stored)
    assert found is not None
    assert [value for _, _, value in found.pending_writes or ()] == [1, 2, 3, 4]


def graph_of_four(saver: PostgresSaver) -> Any:
    graph: Any = StateGraph(MessagesState)
    previous = START
    for number in range(4):

        async def node(_state: MessagesState) -> dict[str, Any]:
            return {"messages": [AIMessage("x" * 400)]}

        graph.add_node(f"n{number}", node)
        graph.add_edge(previous, f"n{number}")
        previous = f"n{number}"
    graph.add_edge(previous, END)
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def counted(database: Database) -> AsyncIterator[Counter[str]]:
    """Count the statements on every connection that the pool may open, by their text.

    What the driver asks a new connection about its types is no part of it.
    """
    statements: Counter[str] = Counter()

    def count(record: Any) -> None:
        if "checkpoint" in record.query:
            statements[record.query] += 1

    async with AsyncExitStack() as held:
        for _ in range(database.pool_max):
            connection = await held.enter_async_context(database.connection())
            # The pool hands out a proxy for each loan; the logger belongs to the connection below.
            connection._con.add_query_logger(count)
    yield statements


async def test_a_run_of_four_nodes_costs_at_most_twelve_statements(
    graph_database: Database, owned_run: OwnedRun
) -> None:
    """1. A graph of four nodes runs with durability `async` behind a fence. 2. PostgreSQL got at most 12 statements."""
    graph = graph_of_four(PostgresSaver(graph_database, fence=owned_run.fence))

    async with counted(graph_database) as statements:
        result = await graph.ainvoke({"messages": [("user", "hi")]}, place(owned_run.thread_id), durability="async")

    assert len(result["messages"]) == 5
    assert 6 < statements.total() <= 12, statements


HOLD_THREAD_WRITES = "LOCK TABLE checkpoints IN ACCESS EXCLUSIVE MODE"


async def test_many_writers_use_many_connections(
    graph_database: Database, owner_connection: Connection, watching: Connection
) -> None:
    """1. The table is locked. 2. One saver gets eight puts at once. 3. All eight wait inside PostgreSQL."""
    saver = PostgresSaver(graph_database)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks, owner_connection.transaction():
        await owner_connection.execute(HOLD_THREAD_WRITES)
        for number in range(8):
            tasks.create_task(saver.aput(place(f"many-{number}"), empty_checkpoint(), METADATA, {}))
        await until_waiting(watching, 8)

    assert await saver.aget_tuple(place("many-7")) is not None


async def test_unchanged_channels_are_stored_once(graph_database: Database, owner_connection: Connection) -> None:
    """1. Five checkpoints, one large channel that stays and one that changes. 2. The large one is one row."""
    saver = PostgresSaver(graph_database)
    config = place("blobs")
    for number in range(5):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"large": ["x"] * 1000, "small": [number]}
        checkpoint["channel_versions"] = {"large": "1", "small": str(number)}
        new: ChannelVersions = {"small": str(number)} if number else dict(checkpoint["channel_versions"])
        config = await saver.aput(config, checkpoint, METADATA, new)

    stored = await owner_connection.fetch(
        "SELECT channel, count(*) FROM checkpoint_blobs WHERE thread_id = 'blobs' GROUP BY channel ORDER BY channel"
    )
    assert [tuple(row) for row in stored] == [("large", 1), ("small", 5)]
    found = await saver.aget_tuple(place("blobs"))
    assert found is not None
    assert found.checkpoint["channel_values"]["large"] == ["x"] * 1000


async def test_an_interrupt_is_resumed_by_another_saver(graph_database: Database) -> None:
    """1. A graph asks and stops. 2. Another saver object, as in another executor, resumes it with the answer."""

    async def ask(_state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"you said {interrupt('well?')}")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    config = place("asked")

    first = await graph.compile(checkpointer=PostgresSaver(graph_database)).ainvoke(
        {"messages": [("user", "hi")]}, config
    )
    second = await graph.compile(checkpointer=PostgresSaver(graph_database)).ainvoke(Command(resume="yes"), config)

    assert first["__interrupt__"][0].value == "well?"
    assert second["messages"][-1].content == "you said yes"


async def test_the_barrier_waits_for_the_checkpoint(
    graph_database: Database, owner_connection: Connection, watching: Connection
) -> None:
    """1. A tool waits for its checkpoint, whose row is held up. 2. The row is stored. 3. The tool goes on.

    4. For a checkpoint that never comes the wait is bounded; one that was read is durable already.
    """
    saver = PostgresSaver(graph_database)
    checkpoint = empty_checkpoint()

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks, owner_connection.transaction():
        await owner_connection.execute(HOLD_THREAD_WRITES)
        tasks.create_task(saver.aput(place("barrier"), checkpoint, METADATA, {}))
        waiting = tasks.create_task(saver.durable(checkpoint["id"]))
        await until_waiting(watching)
        assert not waiting.done()

    with pytest.raises(TimeoutError):
        await saver.durable("never", seconds=0.01)
    another = PostgresSaver(graph_database)
    await another.aget_tuple(place("barrier"))
    await another.durable(checkpoint["id"], seconds=0.01)


async def test_pruning_leaves_what_is_still_named(graph_database: Database, owner_connection: Connection) -> None:
    """1. Two threads have three checkpoints each; one counts towards a delta channel's snapshot. 2. Both are pruned.

    3. One keeps its latest and the blobs that it names; the other keeps all, for its state is in its ancestors' writes.
    """
    saver = PostgresSaver(graph_database)
    for thread, extra in (("plain", {}), ("delta", {"counters_since_delta_snapshot": {"c": (1, 1)}})):
        config = place(thread)
        for number in range(3):
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"kept": [1], "changing": [number]}
            checkpoint["channel_versions"] = {"kept": "1", "changing": str(number)}
            metadata: Any = {**METADATA, **extra}
            config = await saver.aput(config, checkpoint, metadata, dict(checkpoint["channel_versions"]))

    await saver.aprune(["plain", "delta"])

    count = "SELECT count(*) FROM checkpoints WHERE thread_id = $1"
    assert await owner_connection.fetchval(count, "plain") == 1
    assert await owner_connection.fetchval(count, "delta") == 3
    left = await owner_connection.fetch(
        "SELECT channel, version FROM checkpoint_blobs WHERE thread_id = 'plain' ORDER BY channel"
    )
    assert [tuple(row) for row in left] == [("changing", "2"), ("kept", "1")]
    found = await saver.aget_tuple(place("plain"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"kept": [1], "changing": [2]}


async def test_a_copy_goes_on_by_itself(graph_database: Database) -> None:
    """1. A thread with a history is copied. 2. The copy's latest is the original's, and they part from there."""
    saver = PostgresSaver(graph_database)
    source, target = str(uuid4()), str(uuid4())
    graph = graph_of_four(saver)
    await graph.ainvoke({"messages": [("user", "hi")]}, place(source))

    await saver.acopy_thread(source, target)
    await graph.ainvoke({"messages": [("user", "more")]}, place(target))

    assert len((await graph.aget_state(place(source))).values["messages"]) == 5
    assert len((await graph.aget_state(place(target))).values["messages"]) == 10


async def test_synchronous_calls_say_what_to_do(graph_database: Database) -> None:
    """1. A synchronous method is called. 2. The error names the asynchronous way."""
    saver = PostgresSaver(graph_database)

    with pytest.raises(NotImplementedError, match="ainvoke"):
        saver.get_tuple(place("sync"))
    with pytest.raises(NotImplementedError, match="ainvoke"):
        graph_of_four(saver).invoke({"messages": []}, place("sync"))
