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
