"""Bodies of requests."""

from __future__ import annotations

from contextlib import suppress

import orjson
import pytest
from api_gateway.domain import bodies, serial
from headrace_kit.errors import InvalidArgument
from hypothesis import given
from hypothesis import strategies as st


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_body_crashes(raw: bytes) -> None:
    """
    1. Any bytes come as a body.
    2. They are read or refused as an invalid argument, nothing else.
    """
    for model in (bodies.CreateThread, bodies.UpdateThread, bodies.SubmitRequest, bodies.CreateKey):
        with suppress(InvalidArgument):
            bodies.parse(model, raw)


def test_a_value_is_not_repeated_in_its_error() -> None:
    """
    1. A secret stands in a field of the wrong type, and in an unknown one.
    2. The error names the field and not the secret.
    """
    for raw in (b'{"label": {"x": "hunter2"}}', b'{"labl": "hunter2"}', b'{"scopes": ["hunter2"]}'):
        with pytest.raises(InvalidArgument) as caught:
            bodies.parse(bodies.CreateKey, raw)
        assert caught.value.field
        assert "hunter2" not in caught.value.message


_WORDS: list[tuple[type[bodies.Body], object, str]] = [
    (bodies.CreateThread, {"agnt": "a"}, "agnt: unknown field; allowed: agent, title, metadata, thread_id"),
    (bodies.CreateThread, {"agent": ""}, "agent: must not be empty"),
    (bodies.CreateThread, {"agent": None}, "agent: must be a string"),
    (bodies.UpdateThread, {"title": "x" * 201}, "title: must have at most 200 characters"),
    (bodies.UpdateThread, {"metadata": []}, "metadata: must be a JSON object"),
    (bodies.SubmitRequest, {}, "message: send exactly one of input and message, and not null"),
    (bodies.SubmitRequest, {"message": "  "}, "message: must not be empty"),
    (bodies.SubmitRequest, {"message": "a", "durability": "x"}, "durability: must be async, sync or exit"),
    (bodies.SubmitRequest, {"message": "a", "stream_modes": "values"}, "stream_modes: must be an array"),
    (bodies.SubmitRequest, {"message": "a", "stream_subgraphs": 1}, "stream_subgraphs: must be true or false"),
    (bodies.CreateKey, {"uid": "a\x00"}, "uid: must not hold a NUL character"),
    (bodies.CreateKey, {"label": "\x00"}, "label: must not hold a NUL character"),
    (bodies.CreateKey, {"uid": ""}, "uid: must not be empty"),
    (bodies.CreateKey, {"uid": 7}, "uid: must be a string"),
    (bodies.CreateKey, {"label": "x" * 201}, "label: must have at most 200 characters"),
    (bodies.CreateKey, {"scopes": []}, "scopes: must hold at least 1 value"),
    (bodies.CreateKey, {"scopes": "read"}, "scopes: must be an array"),
    (bodies.CreateKey, {"scopes": ["root"]}, "scopes.0: must be read, write or admin"),
    (bodies.CreateKey, {"expires_in_seconds": 0}, "expires_in_seconds: must be at least 1"),
    (bodies.CreateKey, {"expires_in_seconds": 1.5}, "expires_in_seconds: must be a whole number"),
    (bodies.CreateKey, {"expires_in_seconds": 10**10}, "expires_in_seconds: must be at most 316224000"),
]


@pytest.mark.parametrize(("model", "body", "told"), _WORDS, ids=[told for _, _, told in _WORDS])
def test_plain_words(model: type[bodies.Body], body: object, told: str) -> None:
    """
    1. A body is wrong in each way that a body can be.
    2. The error names the field and what is allowed there, in words of JSON and not of a library.
    """
    with pytest.raises(InvalidArgument) as caught:
        bodies.parse(model, orjson.dumps(body))
    assert caught.value.message == told
    assert caught.value.field == told.partition(":")[0]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("model", [bodies.CreateThread, bodies.UpdateThread, bodies.SubmitRequest, bodies.CreateKey])
@given(data=st.data())
def test_no_library_speaks(model: type[bodies.Body], data: st.DataObject) -> None:
    """
    1. Any JSON stands in any field.
    2. What is refused is told in sentences of our own, never in the fallback or in a library's.
    """
    names = st.sampled_from([*model.model_fields, "other"])
    error = _refusal(model, orjson.dumps(data.draw(st.dictionaries(names, _JSON, max_size=3))))
    if error is not None:
        assert error.field
        told = error.message.removeprefix(f"{error.field}: ")
        assert told.startswith(("must ", "unknown field; ", "send exactly one of "))


def _refusal(model: type[bodies.Body], raw: bytes) -> InvalidArgument | None:
    try:
        bodies.parse(model, raw)
    except InvalidArgument as error:
        return error
    return None


def test_a_message_is_short_for_input() -> None:
    """
    1. A submit names a message only.
    2. The graph gets one user message with that text, emoji and NUL as they came: what is allowed is run-worker's.
    """
    body = bodies.parse(bodies.SubmitRequest, orjson.dumps({"message": "a\u0000😀"}))
    assert body.graph_input() == {"messages": [{"role": "user", "content": "a\u0000😀"}]}


@pytest.mark.parametrize("value", [0, "", [], False, {"a": []}])
def test_any_json_but_null_is_input(value: object) -> None:
    """
    1. Input is any JSON value.
    2. It is taken as it is; whether the graph can use it is run-worker's to say.
    """
    assert bodies.parse(bodies.SubmitRequest, orjson.dumps({"input": value})).graph_input() == value


def test_json_that_cannot_be_carried_on() -> None:
    """
    1. A value is nested deeper than JSON is written here.
    2. It is an invalid argument, not a crash.
    """
    value: object = 1
    for _ in range(400):
        value = [value]
    with pytest.raises(InvalidArgument):
        serial.dumps(value)
