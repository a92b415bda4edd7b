"""Where tokens go: to the run's sink and nowhere else inside a run, through LangChain's own ways outside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from headrace_agent.sink import current_sink
from langchain_core.messages import AIMessage, AIMessageChunk
from langgraph.graph import END, START, MessagesState, StateGraph

from .conftest import DONE, RecordingSink, ScriptedProvider, begin, delta, finish, stream

ANSWER = stream(
    delta(reasoning_content="hm"),
    delta(content="one "),
    delta(content="two"),
    delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]),
    finish(),
    DONE,
)


@contextmanager
def using(sink: RecordingSink) -> Iterator[None]:
    token = current_sink.set(sink)
    try:
        yield
    finally:
        current_sink.reset(token)


def graph_of(model: Any, *, sync: bool = False) -> Any:
    async def talk(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def talk_sync(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("talk", talk_sync if sync else talk)
    graph.add_edge(START, "talk")
    graph.add_edge("talk", END)
    return graph.compile()


INPUT = {"messages": [("user", "hi")]}


async def test_under_a_sink_tokens_go_to_the_sink_only(provider: ScriptedProvider) -> None:
    """1. A graph runs under a sink with `messages` and `updates`. 2. The sink gets each piece, with the node's name.

    3. The graph's own stream holds the finished message and no chunk of it, under the same id.
    """
    provider.then(ANSWER)
    sink = RecordingSink()

    with using(sink):
        streamed = [
            item async for item in graph_of(provider.model()).astream(INPUT, stream_mode=["messages", "updates"])
        ]

    (message,) = sink.messages
    assert message.texts == ["one ", "two"]
    assert message.reasonings == ["hm"]
    assert message.calls == [(0, "c", "f", "{}")]
    assert message.metadata["langgraph_node"] == "talk"
    assert message.metadata["langgraph_checkpoint_ns"].startswith("talk:")
    assert message.closed is not None
    assert message.closed.id == message.message_id
    told = [data[0] for mode, data in streamed if mode == "messages"]
    assert [type(one) for one in told] == [AIMessage]
    assert told[0].id == message.message_id
    (update,) = [data for mode, data in streamed if mode == "updates"]
    assert update["talk"]["messages"][0].id == message.message_id


async def test_without_a_sink_langgraph_streams_chunks(provider: ScriptedProvider) -> None:
    """1. The same graph without a sink. 2. `messages` yields each chunk once, and they add up to the message."""
    provider.then(ANSWER)

    streamed = [item async for item in graph_of(provider.model()).astream(INPUT, stream_mode=["messages", "updates"])]

    chunks = [data[0] for mode, data in streamed if mode == "messages"]
    assert [one.content for one in chunks if one.content] == ["one ", "two"]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == "one two"
    assert whole.additional_kwargs["reasoning_content"] == "hm"
    assert whole.tool_calls[0]["name"] == "f"
    assert whole.response_metadata["finish_reason"] == "stop"
    (update,) = [data for mode, data in streamed if mode == "updates"]
    assert update["talk"]["messages"][0].content == "one two"


async def test_astream_outside_a_run(provider: ScriptedProvider) -> None:
    """1. `astream` without a sink. 2. Chunks come as they arrive, the last with usage. 3. Stopping early is clean."""
    provider.then(ANSWER, ANSWER)
    model = provider.model()

    chunks = [chunk async for chunk in model.astream("hi")]
    async for chunk in model.astream("hi"):
        assert isinstance(chunk, AIMessageChunk)
        break

    assert "".join(str(chunk.content) for chunk in chunks) == "one two"


async def test_invoke_and_stream(provider: ScriptedProvider) -> None:
    """1. Ordinary synchronous calls, in a thread without a loop. 2. They answer, also when a stream is left early."""
    provider.then(ANSWER, ANSWER, ANSWER)
    model = provider.model()

    message = await asyncio.to_thread(model.invoke, "hi")
    chunks = await asyncio.to_thread(lambda: list(model.stream("hi")))
    first = await asyncio.to_thread(lambda: next(model.stream("hi")))

    assert message.content == "one two"
    assert "".join(str(chunk.content) for chunk in chunks) == "one two"
    assert isinstance(first, AIMessageChunk)


async def test_a_synchronous_node_streams_through_langgraph(provider: ScriptedProvider) -> None:
    """1. A run's graph has a synchronous node. 2. Its tokens come through `messages`; the sink is not touched."""
    provider.then(ANSWER)
    sink = RecordingSink()

    with using(sink):
        graph = graph_of(provider.model(), sync=True)
        streamed = [item async for item in graph.astream(INPUT, stream_mode=["messages", "updates"])]

    assert sink.messages == []
    assert [d[0].content for mode, d in streamed if mode == "messages" and d[0].content] == ["one ", "two"]


async def test_a_call_tagged_nostream_is_not_told(provider: ScriptedProvider) -> None:
    """1. The author tags a model `nostream`. 2. Neither sink nor `messages` hears of its pieces; the graph has them."""
    provider.then(ANSWER)
    sink = RecordingSink()
    model = provider.model().with_config(tags=["nostream"])

    with using(sink):
        streamed = [item async for item in graph_of(model).astream(INPUT, stream_mode=["messages", "updates"])]

    assert sink.messages == []
    assert [type(data[0]) for mode, data in streamed if mode == "messages"] == [AIMessage]
    (update,) = [data for mode, data in streamed if mode == "updates"]
    assert update["talk"]["messages"][0].content == "one two"


async def test_a_broken_message_is_never_closed(provider: ScriptedProvider) -> None:
    """1. A run is cancelled in the middle of an answer. 2. The sink has the pieces and no end of the message."""
    sink = RecordingSink()

    async def reply(request: Any) -> Any:
        response = await begin(request)
        await response.write(delta(content="half"))
        await asyncio.Event().wait()
        return response

    provider.then(reply)
    with using(sink):
        task = asyncio.create_task(provider.model().ainvoke("hi"))
    async with asyncio.timeout(5):
        await sink.first.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert sink.messages[0].texts == ["half"]
    assert sink.messages[0].closed is None


class LeaseOver(Exception):
    pass


async def test_no_call_without_a_lease(provider: ScriptedProvider) -> None:
    """1. The run's lease is over. 2. Neither an asynchronous nor a synchronous call reaches the provider."""
    sink = RecordingSink()
    sink.refusal = LeaseOver()
    model = provider.model()

    with using(sink):
        with pytest.raises(LeaseOver):
            await model.ainvoke("hi")
        with pytest.raises(LeaseOver):
            await asyncio.to_thread(model.invoke, "hi")

    assert provider.bodies == []


async def test_invoke_in_the_thread_of_a_running_loop(provider: ScriptedProvider) -> None:
    """1. `invoke` and `stream` are called from a coroutine, as in a notebook. 2. They answer."""
    provider.then(ANSWER, ANSWER)
    model = provider.model()

    async def cell() -> tuple[Any, list[Any]]:
        return model.invoke("hi"), list(model.stream("hi"))

    message, chunks = await asyncio.to_thread(asyncio.run, cell())

    assert message.content == "one two"
    assert "".join(str(chunk.content) for chunk in chunks) == "one two"
