"""The built-in agents, as an executor runs them."""

from __future__ import annotations

import json
from pathlib import Path

import headrace_agent
import pytest
from headrace_agent.agents import assistant, echo
from headrace_agent.sink import current_sink

from .conftest import DONE, RecordingSink, ScriptedProvider, delta, finish, stream


async def test_echo_streams_word_by_word() -> None:
    """1. Echo runs under a sink. 2. The pieces add up to the user's text, and the state has the same message."""
    sink = RecordingSink()
    token = current_sink.set(sink)
    try:
        result = await echo.make_graph().ainvoke({"messages": [("user", " Hello  big\nworld \n")]})  # type: ignore[call-overload]  # langgraph types no shorthand
    finally:
        current_sink.reset(token)

    (message,) = sink.messages
    assert message.texts == [" Hello", "  big", "\nworld \n"]
    assert message.metadata["langgraph_node"] == "echo"
    assert message.closed is not None
    assert result["messages"][-1].id == message.message_id
    assert result["messages"][-1].content == " Hello  big\nworld \n"


async def test_echo_without_a_sink() -> None:
    """1. Echo runs as an ordinary graph. 2. It answers all the same."""
    result = await echo.make_graph().ainvoke({"messages": [("user", "Hello")]})  # type: ignore[call-overload]  # as above

    assert result["messages"][-1].content == "Hello"


async def test_the_assistant_uses_its_tools(provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. The environment names a model, which asks for a computation, then answers. 2. Both turns reach the sink.

    3. The model was told the tool's result.
    """
    monkeypatch.setenv("HEADRACE_MODEL_NAME", "scripted")
    monkeypatch.setenv("HEADRACE_MODEL_BASE_URL", provider.url)
    asked = {"index": 0, "id": "c1", "function": {"name": "calculate", "arguments": '{"expression": "6 * 7"}'}}
    provider.then(
        stream(delta(tool_calls=[asked]), finish("tool_calls"), DONE), stream(delta(content="42"), finish(), DONE)
    )
    sink = RecordingSink()
    token = current_sink.set(sink)
    try:
        result = await assistant.make_graph().ainvoke({"messages": [("user", "6 * 7?")]})  # type: ignore[call-overload]  # as above
    finally:
        current_sink.reset(token)

    assert result["messages"][-1].content == "42"
    assert [message.texts for message in sink.messages] == [[], ["42"]]
    assert provider.bodies[1]["messages"][-1] == {
        "role": "tool",
        "name": "calculate",
        "tool_call_id": "c1",
        "content": "42",
    }
    assert {tool["function"]["name"] for tool in provider.bodies[0]["tools"]} == {"calculate", "current_time"}


def test_langgraph_json_names_both() -> None:
    """1. The package's langgraph.json. 2. Its paths are files of the package, its attributes factories there."""
    folder = Path(headrace_agent.__file__).parent
    graphs = json.loads((folder / "langgraph.json").read_text())["graphs"]

    assert set(graphs) == {"assistant", "echo"}
    for entry in graphs.values():
        file, attribute = entry["path"].split(":")
        assert (folder / file).is_file()
        assert attribute == "make_graph"
