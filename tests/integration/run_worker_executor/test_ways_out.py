from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from headrace_agent.errors import ModelRefused, ModelUnavailable
from headrace_kit.budget import Budget
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from run_worker.domain.limits import TimeLimits
from run_worker.executor import run_figures
from run_worker.loops.attempt import RunFigures, Stop

from tests.integration.run_worker_executor.graphs import Talker, echo
from tests.integration.run_worker_executor.harness import World, agent


def one_node(node: Any) -> Any:
    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").add_edge("node", END).compile()


def raising(error: BaseException) -> Any:
    async def node(state: MessagesState) -> dict[str, Any]:
        raise error

    return one_node(node)


@pytest.fixture
def quick(budget: Budget) -> RunFigures:
    return replace(run_figures(budget), fault_back_off_seconds=(0.01, 0.02))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("odd \x00 text"), "graph_error"),
        (ModelRefused("no", status=429, reason="insufficient_quota"), "model_refused"),
    ],
)
async def test_an_error_of_the_graph_fails_the_run(world: World, error: Exception, kind: str) -> None:
    """
    1. A graph raises.
    2. The run fails at once, with the error's own type and message, and says so in its stream.
    """
    made = await world.run(agent="bad")
    async with world.executor(agent("bad", raising(error))):
        row = await world.state_is(made, "failed")
        events = await world.event(made, "end")
    told = orjson.loads(row["error"])
    assert (told["type"], row["attempt"]) == (kind, 1)
    assert events[-2].data["error"] == told
    assert "Traceback" not in row["error"]


async def test_an_error_names_its_exception_node_and_line(world: World, tmp_path: Path) -> None:
    """
    1. Code of the author's, in a file of theirs, raises inside a node; so does a library that it calls.
    2. The run's error names the exception, the node and the author's line, and holds them as details.
    """
    file = tmp_path / "nomsg.py"
    file.write_text("import json\n\ndef dbl(state):\n    return state['n']\n\ndef parse(state):\n    json.loads('{')\n")
    scope: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)  # a file of the author's
    errors = []
    for name in ("dbl", "parse"):
        graph = StateGraph(MessagesState).add_node(name, scope[name]).add_edge(START, name).compile()
        made = await world.run(agent=name)
        async with world.executor(agent(name, graph)):
            row = await world.state_is(made, "failed", "completed")
        errors.append(orjson.loads(row["error"]))
    assert errors[0]["message"] == "KeyError: 'n' in node 'dbl' (nomsg.py:4)"
    assert errors[0]["details"] == {"exception": "KeyError", "node": "dbl", "file": "nomsg.py", "line": 4}
    assert errors[1]["message"].startswith("JSONDecodeError: Expecting")
    assert errors[1]["message"].endswith(" in node 'parse' (nomsg.py:7)")


async def test_an_absent_model_is_tried_three_times(world: World, quick: RunFigures) -> None:
    """
    1. The provider is away.
    2. Attempts 1 and 2 hand back with a fault each; attempt 3 fails the run with the provider's reason.
    """
    made = await world.run(agent="away")
    async with world.executor(agent("away", raising(ModelUnavailable("connection refused"))), figures=quick):
        row = await world.state_is(made, "failed")
        events = await world.event(made, "end")
    assert (row["attempt"], row["faults"]) == (3, 2)
    assert orjson.loads(row["error"])["type"] == "model_unavailable"
    outcomes = await world.control.fetch("SELECT outcome FROM attempts WHERE run_id = $1 ORDER BY attempt", made.run_id)
    assert [row["outcome"] for row in outcomes] == ["handed_back", "handed_back", "failed"]
    third = [event.event for event in events if event.id.attempt == 3]
    assert third[:2] == ["metadata", "snapshot"]
    before = [event.data.get("previous") for event in events if event.event == "metadata"]
    assert before == [None, *[{"outcome": "handed_back", "error_type": "model_unavailable"}] * 2]


async def test_a_missing_agent_fails_the_run(world: World) -> None:
    """
    1. A run names an agent that is not loaded.
    2. It fails with agent_missing.
    """
    made = await world.run(agent="nobody")
    async with world.executor(agent("echo", echo())):
        row = await world.state_is(made, "failed")
    assert orjson.loads(row["error"])["type"] == "agent_missing"


async def test_a_question_interrupts_the_run(world: World) -> None:
    """
    1. A graph asks by interrupt().
    2. The run is interrupted with the question; `interrupt` was told before `result`.
    """

    async def ask(state: MessagesState) -> dict[str, Any]:
        answer = interrupt({"really": True})
        return {"messages": [AIMessage(str(answer))]}

    made = await world.run(agent="ask")
    async with world.executor(agent("ask", one_node(ask))):
        row = await world.state_is(made, "interrupted", "failed", "completed")
        events = await world.event(made, "end")
    assert row["state"] == "interrupted"
    [question] = orjson.loads(row["interrupts"])
    assert question["value"] == {"really": True}
    assert [e.event for e in events][-3:] == ["interrupt", "result", "end"]
    assert events[-3].data == {"questions": [question]}


async def test_a_graph_without_messages_completes_with_its_checkpoint(world: World) -> None:
    """
    1. A graph's state is a plain dict without messages.
    2. Its run completes with the id of its last checkpoint as output.
    """

    async def double(state: dict[str, int]) -> dict[str, int]:
        return {"n": state["n"] * 2}

    graph: Any = StateGraph(dict)
    graph = graph.add_node("double", double).add_edge(START, "double").compile()
    made = await world.run(agent="double", input={"n": 21}, stream_modes=["values", "updates"])
    async with world.executor(agent("double", graph)):
        row = await world.state_is(made, "completed", "failed")
        events = await world.event(made, "end")
    assert row["state"] == "completed", row["error"]
    assert row["output_message_id"] is None
    stored = await world.control.fetchval(
        "SELECT count(*) FROM checkpoints WHERE checkpoint_id = $1", row["output_checkpoint_id"]
    )
    assert stored == 1
    assert {"n": 42} in [event.data for event in events if event.event == "values"]


async def test_endless_graphs_fail_with_recursion_limit(world: World) -> None:
    """
    1. A graph loops for ever; the client set a recursion limit.
    2. The run fails with recursion_limit.
    """

    async def again(state: MessagesState) -> dict[str, Any]:
        return {"messages": []}

    graph = StateGraph(MessagesState)
    graph.add_node("again", again)
    graph.add_edge(START, "again")
    graph.add_edge("again", "again")
    made = await world.run(agent="loop", config={"recursion_limit": 5})
    async with world.executor(agent("loop", graph.compile())):
        row = await world.state_is(made, "failed")
    assert orjson.loads(row["error"])["type"] == "recursion_limit"


async def test_a_slow_tool_breaks_its_time_limit(world: World, budget: Budget) -> None:
    """
    1. A tool call takes longer than the agent allows.
    2. The run fails with timeout, which: tool; `tool` started was told; the open call is answered in the transcript.
    """

    @tool
    async def sleepy() -> str:
        """Never answers."""
        await asyncio.Event().wait()
        return "never"

    async def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("", tool_calls=[ToolCall(id="c1", name="sleepy", args={})])]}

    graph = (
        StateGraph(MessagesState)
        .add_node("call", call)
        .add_node("tools", ToolNode([sleepy]))
        .add_edge(START, "call")
        .add_edge("call", "tools")
        .compile()
    )
    figures = replace(run_figures(budget), limits=TimeLimits(run=60, model_first_byte=60, model_silence=60, tool=0.3))
    made = await world.run(agent="slow")
    async with world.executor(agent("slow", graph), figures=figures):
        row = await world.state_is(made, "failed")
        events = await world.event(made, "end")
    assert orjson.loads(row["error"]) == {
        "type": "timeout",
        "message": "the time limit tool is used up",
        "details": {"which": "tool"},
    }
    started, failed = [event.data for event in events if event.event == "tool"]
    assert (failed["id"], failed["phase"]) == ("c1", "failed")
    assert (started["id"], started["name"], started["phase"]) == ("c1", "sleepy", "started")
    transcript = await world.messages(made.thread_id)
    assert [message["role"] for message in transcript] == ["assistant", "tool"]
    assert transcript[1]["tool_call_id"] == "c1"


async def test_a_foreign_model_streams_through_messages(world: World) -> None:
    """
    1. A graph uses a LangChain model that knows nothing of sinks.
    2. Its tokens are told once, merged; the complete message is not told again.
    """
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three four")]))

    async def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    made = await world.run(agent="foreign")
    async with world.executor(agent("foreign", one_node(call))):
        row = await world.state_is(made, "completed", "failed")
        events = await world.event(made, "end")
    assert row["state"] == "completed", row["error"]
    chunks = [event.data[0] for event in events if event.event == "messages"]
    assert "".join(chunk["content"] for chunk in chunks) == "one two three four"
    assert {chunk["id"] for chunk in chunks} == {row["output_message_id"]}
    assert row["first_output_at"] is not None


async def test_a_handed_back_run_goes_on_and_applies_its_input_once(world: World) -> None:
    """
    1. A run has finished its first node and is inside its second when its executor drains.
    2. It is handed back without a fault; another executor goes on from the checkpoint.
    3. The first node ran once, the user's message is in the state once, and the transcript has both answers.
    """
    talker, ran = Talker(), []

    async def first(state: MessagesState) -> dict[str, Any]:
        ran.append(len(state["messages"]))
        return {"messages": [AIMessage("first", id="first")]}

    async def second(state: MessagesState) -> dict[str, Any]:
        talker.calls += 1
        talker.said.set()
        await talker.go_on.wait()
        return {"messages": [AIMessage(f"saw {len(state['messages'])}", id="second")]}

    graph = (
        StateGraph(MessagesState)
        .add_node("first", first)
        .add_node("second", second)
        .add_edge(START, "first")
        .add_edge("first", "second")
        .compile()
    )
    made = await world.run(agent="two", durability="sync")
    async with world.executor(agent("two", graph)) as one:
        await asyncio.wait_for(talker.said.wait(), 10)
        one.claimer.draining = True
        one.table.stop_all(Stop.HAND_BACK)
        assert await one.table.wait_empty(10)
        row = await world.row(made.run_id)
        assert (row["state"], row["faults"], row["attempt"]) == ("pending", 0, 1)
        talker.go_on.set()
        async with world.executor(agent("two", graph)):
            row = await world.state_is(made, "completed", "failed")
            events = await world.event(made, "end")
    assert row["state"] == "completed", row["error"]
    assert (row["attempt"], row["faults"]) == (2, 0)
    assert ran == [1]
    assert talker.calls == 2
    assert [m["content"] for m in await world.messages(made.thread_id)] == ["first", "saw 2"]
    second_attempt = [event for event in events if event.id.attempt == 2]
    assert [event.event for event in second_attempt][:2] == ["metadata", "snapshot"]
    assert [m["message_id"] for m in second_attempt[1].data["messages"]] == ["first"]


async def test_a_lost_owner_says_nothing(world: World) -> None:
    """
    1. A run streams; in PostgreSQL it becomes another executor's, as by a takeover.
    2. The durable check of the former owner finds out.
    3. It stops; nothing of it is written or told after that.
    """
    talker = Talker()
    made = await world.run(agent="talker")
    other = await world.executor_row()
    async with world.executor(agent("talker", talker.graph())) as executor:
        await asyncio.wait_for(talker.said.wait(), 10)
        await world.event(made, "messages")
        await world.hand_take(made, other)
        assert await executor.table.wait_empty(10)
        assert talker.cancelled
        events = await world.events(made)
    row = await world.row(made.run_id)
    assert (row["state"], row["attempt"], row["lease_owner"]) == ("running", 2, other)
    assert {event.id.attempt for event in events} == {1}
    assert "result" not in [event.event for event in events]


async def test_a_hinted_cancel_ends_within_the_watch_interval(world: World) -> None:
    """
    1. A run streams. A cancel is committed and its key set.
    2. It is durably cancelled long before the durable check would have come.
    """
    talker = Talker()
    made = await world.run(agent="talker")
    async with world.executor(agent("talker", talker.graph())) as executor:
        executor.watch._postgres_seconds = 3600.0
        await asyncio.wait_for(talker.said.wait(), 10)
        await asyncio.sleep(0.1)
        await world.cancel(made, key=True)
        row = await world.state_is(made, "cancelled")
    assert row["cancel_requested_at"] is not None
