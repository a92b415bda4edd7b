"""Messages in every form that a node may return: told once, under the id that the transcript has."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from tests.integration.run_worker_executor.graphs import Talker
from tests.integration.run_worker_executor.harness import Event, Made, World, agent


class PlainState(TypedDict):
    """Messages without a reducer of LangGraph's: they stay what they are."""

    messages: Annotated[list[Any], operator.add]


def chain(state: Any, *nodes: Any) -> Any:
    graph = StateGraph(state)
    names = [f"n{index}" for index in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    for one, two in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(one, two)
    return graph.compile()


def returning(*messages: Any) -> Any:
    async def node(state: Any) -> dict[str, Any]:
        return {"messages": list(messages)}

    return node


async def ended(world: World, made: Made, *graphs: Any) -> tuple[Any, list[Event]]:
    async with world.executor(*graphs):
        row = await world.state_is(made, "completed", "failed")
        events = await world.event(made, "end")
    assert row["state"] == "completed", row["error"]
    return row, events


def told(events: list[Event]) -> list[tuple[str, str, str]]:
    """What viewers were told: id, text and node of each `messages` event."""
    pieces = [event.data for event in events if event.event == "messages"]
    return [(chunk["id"], chunk["content"], metadata.get("langgraph_node", "")) for chunk, metadata in pieces]


@pytest.mark.parametrize("state", [MessagesState, PlainState])
@pytest.mark.parametrize(
    "answer",
    [{"role": "assistant", "content": "hi"}, {"type": "ai", "content": "hi"}, ("ai", "hi"), AIMessage("hi")],
    ids=["role", "type", "pair", "object"],
)
async def test_every_form_of_a_message_is_told_once(world: World, state: Any, answer: Any) -> None:
    """
    1. A node returns its answer as a dict, a pair or an object, with LangGraph's reducer and without.
    2. It is told once, as a message of its node; its id is the transcript's; the first output has its time.
    """
    made = await world.run(agent="forms")
    row, events = await ended(world, made, agent("forms", chain(state, returning(answer))))
    [message] = await world.messages(made.thread_id)
    assert told(events) == [(message["message_id"], "hi", "n0")]
    assert row["output_message_id"] == message["message_id"]
    assert row["first_output_at"] is not None
    assert [event.event for event in events if event.event in ("messages", "updates", "values")] == ["messages"]


async def test_each_step_tells_its_messages_in_order(world: World) -> None:
    """
    1. Three nodes return a dict with a tool's call, the tool's answer as a dict, and two pairs of one text.
    2. All four are told in order, each of its node; the user's text is not; `values` was asked for and comes too.
    3. The next run of the thread tells its own messages only.
    """
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "look", "args": {}}]}
    answer = {"role": "tool", "content": "seen", "tool_call_id": "c"}
    graph = chain(MessagesState, returning(call), returning(answer), returning(("ai", "so"), ("ai", "so")))
    made = await world.run(agent="steps", stream_modes=["values"])
    _, events = await ended(world, made, agent("steps", graph))
    first = [m["message_id"] for m in await world.messages(made.thread_id)]
    assert [(text, node) for _, text, node in told(events)] == [("", "n0"), ("seen", "n1"), ("so", "n2"), ("so", "n2")]
    assert [message_id for message_id, _, _ in told(events)] == first
    assert [event.event for event in events].count("values") == 4
    following = await world.request(made.thread_id, agent="steps", text="again")
    _, events = await ended(world, following, agent("steps", graph))
    assert len(told(events)) == 4
    assert not {message_id for message_id, _, _ in told(events)} & set(first)


async def test_a_streamed_text_in_a_new_message_is_not_told_again(world: World) -> None:
    """
    1. A model streams an answer; its node returns the text as a dict, which gets an id of its own.
    2. The text is told once, in the model's pieces; a later node's dict is told.
    """
    model = GenericFakeChatModel(messages=iter([AIMessage("one two", id="of-the-model")]))

    async def node(state: Any) -> dict[str, Any]:
        answer = await model.ainvoke(state["messages"])
        return {"messages": [{"role": "assistant", "content": answer.content}]}

    made = await world.run(agent="wrapped")
    _, events = await ended(world, made, agent("wrapped", chain(MessagesState, node, returning(("ai", "more")))))
    assert "".join(text for _, text, _ in told(events)) == "one twomore"


async def test_what_the_client_gave_is_not_told_as_output(world: World) -> None:
    """
    1. The input holds a history with an assistant's message in it.
    2. Only the node's own answer is told.
    """
    history = [{"role": "assistant", "content": "old"}, {"role": "user", "content": "new", "id": "u"}]
    made = await world.run(agent="history", input={"messages": history})
    _, events = await ended(world, made, agent("history", chain(MessagesState, returning(("ai", "hi")))))
    assert [text for _, text, _ in told(events)] == ["hi"]


async def test_an_id_that_each_turn_uses_again_loses_no_answer(world: World) -> None:
    """
    1. A graph gives each turn's answer the same id.
    2. The transcript has both answers, the second under an id with the number of its run, which is its output.
    3. The second answer was told to viewers.
    """

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"to {state['messages'][-1].content}", id="answer")]}

    graph = agent("constant", chain(MessagesState, answer))
    thread_id = await world.thread(agent="constant")
    first, _ = await ended(world, await world.request(thread_id, agent="constant", text="one"), graph)
    second, events = await ended(world, await world.request(thread_id, agent="constant", text="two"), graph)
    assert (first["output_message_id"], second["output_message_id"]) == ("answer", "answer#2")
    said = [(m["message_id"], m["content"]) for m in await world.messages(thread_id) if m["role"] == "assistant"]
    assert said == [("answer", "to one"), ("answer#2", "to two")]
    assert [text for _, text, _ in told(events)] == ["to two"]


async def test_an_id_used_again_is_told_apart_after_a_hand_back_too(world: World) -> None:
    """
    1. The second turn's run has answered under the first turn's id, and is handed back in its next node.
    2. Another executor completes it: the answer is still this run's, under the id with the number of its run.
    """
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer(state: MessagesState) -> dict[str, Any]:
        content: list[str | dict[str, Any]] = [{"type": "text", "text": f"to {state['messages'][-1].content}"}]
        return {"messages": [AIMessage(content, id="answer")]}

    async def wait(state: MessagesState) -> None:
        if len(state["messages"]) > 2:
            asked.set()
            await go_on.wait()

    graph = agent("constant", chain(MessagesState, answer, wait))
    thread_id = await world.thread(agent="constant")
    await ended(world, await world.request(thread_id, agent="constant", text="one"), graph)
    made = await world.request(thread_id, agent="constant", text="two", durability="sync")
    async with world.executor(graph):
        await asyncio.wait_for(asked.wait(), 10)
    go_on.set()
    row, _ = await ended(world, made, graph)
    assert (row["attempt"], row["output_message_id"]) == (2, "answer#2")
    said = [m["content"][0]["text"] for m in await world.messages(thread_id) if m["role"] == "assistant"]
    assert said == ["to one", "to two"]


async def test_a_cut_off_message_under_an_id_used_again_is_kept(world: World) -> None:
    """
    1. A turn is cancelled while it streams under the id of the former turn's answer.
    2. The transcript has both: the answer as it was, and the cut-off text under the id with the run's number.
    """
    talker = Talker()
    talker.go_on.set()
    graph = agent("talker", talker.graph())
    thread_id = await world.thread(agent="talker")
    await ended(world, await world.request(thread_id, agent="talker", text="one"), graph)
    for event in (talker.said, talker.go_on):
        event.clear()
    talker.calls = 0
    made = await world.request(thread_id, agent="talker", text="two")
    async with world.executor(graph):
        await asyncio.wait_for(talker.said.wait(), 10)
        await world.cancel(made, key=True)
        await world.state_is(made, "cancelled")
    said = [(m["message_id"], m["content"], m["partial"]) for m in await world.messages(thread_id)]
    assert said == [("talk-1", "partial text and the rest", False), ("talk-1#2", "partial text", True)]
