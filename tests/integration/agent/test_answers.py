"""What the chat model makes of a provider's answers: text, reasoning, tool calls, usage, and providers' dialects."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from .conftest import DONE, KEY, ScriptedProvider, begin, delta, event, finish, stream


async def test_text_and_usage(provider: ScriptedProvider) -> None:
    """1. The provider streams text and counts tokens. 2. One message has both; the key went as a bearer token."""
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    provider.then(
        stream(
            delta(role="assistant", content=""),
            delta(content="Hello"),
            delta(content=" there"),
            finish(),
            event({"choices": [], "usage": usage}),
            DONE,
        )
    )

    message = await provider.model(temperature=0.5, extra={"seed": 1}).ainvoke("hi", stop=["END"])

    assert message.content == "Hello there"
    assert message.usage_metadata == {
        "input_tokens": 7,
        "output_tokens": 5,
        "total_tokens": 12,
        "input_token_details": {"cache_read": 3},
        "output_token_details": {"reasoning": 2},
    }
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.response_metadata["model_name"] == "scripted"
    assert provider.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert provider.bodies[0] == {
        "model": "scripted",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "seed": 1,
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_kept_apart(provider: ScriptedProvider, field: str) -> None:
    """1. The provider thinks, then answers. 2. The thoughts are beside the content, under one name."""
    provider.then(stream(delta(**{field: "Let me "}), delta(**{field: "see."}), delta(content="42"), finish(), DONE))

    message = await provider.model().ainvoke("hi")

    assert message.content == "42"
    assert message.additional_kwargs["reasoning_content"] == "Let me see."


def call(index: int | None, arguments: str, **fields: Any) -> dict[str, Any]:
    piece: dict[str, Any] = {"function": {"arguments": arguments}, **fields}
    if index is not None:
        piece["index"] = index
    if "name" in piece:
        piece["function"]["name"] = piece.pop("name")
    return piece


async def test_parallel_tool_calls_in_fragments(provider: ScriptedProvider) -> None:
    """1. Two calls come interleaved, cut inside their JSON. 2. Both are whole; the tools went in OpenAI's schema."""

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    provider.then(
        stream(
            delta(tool_calls=[call(0, "", id="c_a", name="add")]),
            delta(tool_calls=[call(0, '{"a": 1,')]),
            delta(tool_calls=[call(1, '{"a"', id="c_b", name="add")]),
            delta(tool_calls=[call(0, ' "b": 2}'), call(1, ": 3}")]),
            finish("tool_calls"),
            DONE,
        )
    )

    message = await provider.model().bind_tools([add], tool_choice="add", parallel_tool_calls=True).ainvoke("add")

    assert [(c["id"], c["name"], c["args"]) for c in message.tool_calls] == [
        ("c_a", "add", {"a": 1, "b": 2}),
        ("c_b", "add", {"a": 3}),
    ]
    sent = provider.bodies[0]
    assert sent["tools"][0]["function"]["name"] == "add"
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert sent["parallel_tool_calls"] is True


async def test_tool_calls_of_providers_that_number_badly(provider: ScriptedProvider) -> None:
    """1. A provider numbers every call 0, another none and gives no id. 2. The calls are told apart all the same."""
    same = [call(0, '{"x": 1}', id="one", name="f"), call(0, '{"x": 2}', id="two", name="f")]
    none = [call(None, '{"x": 3}', name="g")]
    provider.then(
        stream(delta(tool_calls=same[:1]), delta(tool_calls=same[1:]), finish(), DONE),
        stream(delta(tool_calls=none), finish(), DONE),
    )

    first = await provider.model().ainvoke("go")
    second = await provider.model().ainvoke("go")

    assert [(c["id"], c["args"]) for c in first.tool_calls] == [("one", {"x": 1}), ("two", {"x": 2})]
    assert second.tool_calls[0]["args"] == {"x": 3}
    assert str(second.tool_calls[0]["id"]).startswith("call_")


async def test_arguments_that_are_no_object_are_an_invalid_call(provider: ScriptedProvider) -> None:
    """1. The model breaks off inside its JSON. 2. The message says so instead of raising."""
    provider.then(stream(delta(tool_calls=[call(0, '{"a": ', id="c", name="f")]), finish("length"), DONE))

    message = await provider.model().ainvoke("go")

    assert message.tool_calls == []
    assert message.invalid_tool_calls[0]["args"] == '{"a": '
    assert message.response_metadata["finish_reason"] == "length"


class Answer(BaseModel):
    """An answer."""

    city: str
    people: int


async def test_structured_output_by_schema_and_by_tool(provider: ScriptedProvider) -> None:
    """1. By JSON schema, by tool, with a bad answer. 2. Instances come; the bad one is told, not raised."""
    provider.then(
        stream(delta(content='{"city": "Ulm", '), delta(content='"people": 127000}'), finish(), DONE),
        stream(
            delta(tool_calls=[call(0, '{"city": "Ulm", "people": 1}', id="c", name="Answer")]),
            finish("tool_calls"),
            DONE,
        ),
        stream(delta(content="no idea"), finish(), DONE),
    )
    model = provider.model()

    by_schema = await model.with_structured_output(Answer, strict=True).ainvoke("?")
    by_tool = await model.with_structured_output(Answer, method="function_calling").ainvoke("?")
    bad = await model.with_structured_output(Answer, include_raw=True).ainvoke("?")

    assert by_schema == Answer(city="Ulm", people=127000)
    assert by_tool == Answer(city="Ulm", people=1)
    assert bad["parsed"] is None
    assert bad["parsing_error"] is not None
    asked = provider.bodies[0]["response_format"]
    assert (asked["type"], asked["json_schema"]["name"], asked["json_schema"]["strict"]) == (
        "json_schema",
        "Answer",
        True,
    )
    assert provider.bodies[1]["tool_choice"]["function"]["name"] == "Answer"


async def test_characters_and_events_cut_anywhere(provider: ScriptedProvider) -> None:
    """1. An answer with emoji, comments and CRLF arrives one byte at a time. 2. Nothing is lost or doubled."""
    whole = b": hello\r\n\r\n" + (delta(content="Grüße 🌊") + delta(content="👩‍🚀") + finish() + DONE).replace(
        b"\n", b"\r\n"
    )
    provider.then(stream(*(whole[i : i + 1] for i in range(len(whole)))))

    message = await provider.model().ainvoke("hi")

    assert message.content == "Grüße 🌊👩‍🚀"


async def test_text_that_cannot_be_stored_is_replaced(provider: ScriptedProvider) -> None:
    """1. NUL and half a surrogate pair come in text and in arguments. 2. Each is U+FFFD."""
    lone = b'data: {"choices": [{"delta": {"content": "c\\ud83dd"}}]}\n\n'
    provider.then(
        stream(
            delta(content="a\x00b"),
            lone,
            delta(tool_calls=[call(0, '{"q": "x\\u0000y\\ud800"}', id="c", name="f")]),
            finish(),
            DONE,
        )
    )

    message = await provider.model().ainvoke("hi")

    assert message.content == "a\ufffdbc\ufffdd"
    assert message.tool_calls[0]["args"] == {"q": "x\ufffdy\ufffd"}


async def test_a_provider_that_does_not_stream(provider: ScriptedProvider) -> None:
    """1. The provider ignores `stream` and sends one JSON object. 2. It is an answer like any other."""

    async def whole(request: Any) -> Any:
        from aiohttp import web

        choice = {"message": {"role": "assistant", "content": "all at once"}, "finish_reason": "stop"}
        return web.json_response({"id": "x", "model": "m", "choices": [choice], "usage": {"prompt_tokens": 1}})

    provider.then(whole)

    message = await provider.model().ainvoke("hi")

    assert message.content == "all at once"
    assert message.usage_metadata is not None
    assert message.usage_metadata["input_tokens"] == 1


async def test_an_end_without_done_and_blocks_of_content(provider: ScriptedProvider) -> None:
    """1. A provider sends blocks, a finish_reason and just ends. 2. The answer is complete."""

    async def reply(request: Any) -> Any:
        response = await begin(request)
        blocks = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]
        await response.write(delta(content=blocks) + finish().rstrip())
        return response

    provider.then(reply)

    message = await provider.model().ainvoke("hi")

    assert message.content == "yes"
    assert message.additional_kwargs["reasoning_content"] == "hm"


async def test_a_conversation_with_tools_is_sent_as_openai_wants_it(provider: ScriptedProvider) -> None:
    """1. The history holds a call, its result and half a surrogate pair. 2. The provider gets valid JSON of it."""
    provider.then(stream(delta(content="ok"), finish(), DONE))
    asked = AIMessage(content="", tool_calls=[{"id": "c1", "name": "f", "args": {"x": 1}}])

    await provider.model().ainvoke([HumanMessage("go"), asked, ToolMessage("12\ud800", tool_call_id="c1")])

    _, assistant, result = provider.bodies[0]["messages"]
    assert assistant["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert result["tool_call_id"] == "c1"
    assert result["content"] == "12\ufffd"


async def test_connections_are_used_again(provider: ScriptedProvider) -> None:
    """1. Three calls, one after the other. 2. They share one connection."""
    provider.then(*[stream(delta(content="ok"), finish(), DONE)] * 3)
    model = provider.model()

    for _ in range(3):
        await model.ainvoke("hi")

    assert len(provider.connections) == 1
