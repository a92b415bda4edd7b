"""What may be submitted."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_worker.domain.inputs import Body, InputError, Submission, check_submission, parse_json_object

MESSAGE = {"role": "user", "content": "hi"}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def checked(**fields: Any) -> Submission:
    values: dict[str, Any] = {"input": b"{}", "config": b"", "context": b"", "metadata": b"", "stream_modes": []}
    values |= {"stream_subgraphs": False, "durability": "", "multitask_strategy": "enqueue"} | fields
    numbers = count(1)
    return check_submission(Body(**values), thread_id="t", mint_id=lambda: f"id-{next(numbers)}")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": b""}, "input"),
        ({"input": b"[]"}, "input"),
        ({"input": b"{"}, "input"),
        ({"input": b'{"a": NaN}'}, "input"),
        ({"input": b'{"a": "\\ud800"}'}, "input"),
        ({"input": b'{"a": "\xff"}'}, "input"),
        ({"input": b"[" * 300 + b"]" * 300}, "input"),
        ({"input": b'{"a":' * 300 + b"1" + b"}" * 300}, "input"),
        ({"input": b'{"a": [1, {"b": "x\\u0000"}]}'}, "input.a[1].b"),
        ({"input": b'{"a": {"x\\u0000": 1}}'}, "input.a (a key)"),
        ({"metadata": b'{"a": "\\u0000"}'}, "metadata.a"),
        ({"context": b"3"}, "context"),
        ({"config": b"null"}, "config"),
        ({"config": b'{"callbacks": []}'}, "config.callbacks"),
        ({"config": b'{"configurable": []}'}, "config.configurable"),
        ({"config": b'{"configurable": {"checkpoint_ns": ""}}'}, "config.configurable.checkpoint_ns"),
        ({"config": b'{"configurable": {"run_id": "x"}}'}, "config.configurable.run_id"),
        ({"config": b'{"configurable": {"__pregel_read": 1}}'}, "config.configurable.__pregel_read"),
        ({"config": b'{"tags": "x"}'}, "config.tags"),
        ({"config": b'{"recursion_limit": true}'}, "config.recursion_limit"),
        ({"config": b'{"recursion_limit": 0}'}, "config.recursion_limit"),
        ({"stream_modes": ["debug"]}, "stream_modes"),
        ({"durability": "maybe"}, "durability"),
        ({"input": b'{"messages": [{"role": "user"}]}'}, "input.messages[0].content"),
        ({"input": b'{"messages": {"type": "human", "content": 1}}'}, "input.messages.content"),
        ({"input": b'{"messages": [{"role": "user", "content": "x", "id": 7}]}'}, "input.messages[0].id"),
        ({"input": b'{"messages": [{"role": "user", "content": ""}]}'}, "input.messages[0].content"),
        ({"input": b'{"messages": {"type": "human", "content": []}}'}, "input.messages.content"),
        (
            {"input": b'{"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}'},
            "input.messages[0].content",
        ),
        ({"input": b'{"messages": ["x", ""]}'}, "input.messages[1]"),
        ({"input": b'{"messages": [["human", ""]]}'}, "input.messages[0]"),
        ({"input": json.dumps({"messages": [{**MESSAGE, "id": "a"}] * 2}).encode()}, "input.messages"),
    ],
)
def test_what_is_refused_names_its_field(fields: dict[str, Any], field: str) -> None:
    """1. Submit something wrong.  2. The error names the field, down to the place in the JSON."""
    with pytest.raises(InputError) as caught:
        checked(**fields)
    assert caught.value.field == field


def test_user_messages_get_ids_that_the_graph_sees_too() -> None:
    """1. Submit messages of several kinds.  2. Those of the user have ids, in the input as in the transcript."""
    given_messages = [
        MESSAGE,
        {"type": "human", "content": [{"type": "text", "text": "x"}], "id": "mine", "name": "ann"},
        {"role": "system", "content": "s"},
        ["user", "as a pair"],
        "as a text",
    ]
    submission = checked(input=json.dumps({"messages": given_messages}).encode())
    stored = json.loads(submission.input)["messages"]
    assert [(m.message_id, m.name) for m in submission.messages] == [("id-1", ""), ("mine", "ann")]
    assert [stored[0]["id"], stored[1]["id"]] == ["id-1", "mine"]
    assert stored[2:] == given_messages[2:]


def test_an_input_without_messages_is_left_alone() -> None:
    """1. Submit input of a graph without messages.  2. It is stored as it is."""
    assert json.loads(checked(input=b'{"n": 1, "messages": "none"}').input) == {"n": 1, "messages": "none"}


def test_absent_stream_modes_are_the_default() -> None:
    """1. Submit without modes, and with one twice.  2. updates and custom; each once."""
    assert checked().stream_modes == ("updates", "custom")
    assert checked(stream_modes=["values", "values"]).stream_modes == ("values",)


def test_the_digest_is_of_the_body_alone() -> None:
    """1. Submit the same body with keys in another order, ids being minted.  2. The digests are equal.
    3. Any other field gives another one.
    """
    body = {"messages": [MESSAGE], "x": 1}
    one = checked(input=json.dumps(body).encode())
    two = checked(input=json.dumps(dict(reversed(body.items()))).encode())
    others = [checked(input=json.dumps(body).encode(), **{name: value}) for name, value in [
        ("metadata", b'{"a": 1}'), ("durability", "sync"), ("multitask_strategy", "reject"), ("stream_subgraphs", True),
    ]]  # fmt: skip
    assert one.body_sha256 == two.body_sha256
    assert len({one.body_sha256, *(other.body_sha256 for other in others)}) == 5


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_an_object_is_kept_or_refused_for_nul(value: dict[str, Any]) -> None:
    """1. Take any JSON object.  2. It is parsed as it is, or refused because a NUL is in it, wherever that is."""
    try:
        raw = orjson.dumps(value)
    except TypeError:  # hypothesis found a lone surrogate: the encoder refuses it before we could
        return
    holds_nul = "\\u0000" in json.dumps(value).replace("\\\\", "")
    try:
        parsed = parse_json_object(raw, field="input")
    except InputError:
        assert holds_nul
    else:
        assert parsed == value
        assert not holds_nul
