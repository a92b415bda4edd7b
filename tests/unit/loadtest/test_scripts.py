"""What the scripted model says: grammar, directives, turns, and the time they ideally take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from headrace_loadtest import scripts
from headrace_loadtest.scripts import Conversation, Script, ScriptError, choose, read_conversation
from hypothesis import given
from hypothesis import strategies as st


def said(text: str, *after: Mapping[str, Any]) -> Conversation:
    return read_conversation([{"role": "system", "content": "be brief"}, {"role": "user", "content": text}, *after])


def test_model_name_sets_tokens_and_pace() -> None:
    """
    1. a request names the model `scripted:tokens=200,first=0.3,rate=50`
    2. the answer is exactly tok0 ... tok199, ideally in 4.3 s
    """
    turn = choose("scripted:tokens=200,first=0.3,rate=50", said("hello"))
    assert turn.text == " ".join(f"tok{i}" for i in range(200))
    assert len(turn.deltas) == 200
    assert turn.ideal_seconds == pytest.approx(4.3)


@pytest.mark.parametrize("name", ["scripted:speed=3", "scripted:tokens=many", "scripted:tokens=0", "scripted:rate=-1"])
def test_wrong_model_name_is_refused(name: str) -> None:
    with pytest.raises(ScriptError, match="model name"):
        choose(name, said("hello"))


def test_directive_wins_over_model_name() -> None:
    """
    1. the model's name asks for 200 paced tokens
    2. the user's directive asks for a text of its own
    3. the text is the directive's, the pace the name's
    """
    turn = choose("scripted:tokens=200,first=0.3,rate=50", said('hello\n#script {"text":"a b"}'))
    assert (turn.text, turn.first_s, turn.rate) == ("a b", 0.3, 50)


@pytest.mark.parametrize("line", ["#script {", '#script {"tokns":3}', '#script {"tokens":0}', "#script []"])
def test_wrong_directive_is_refused(line: str) -> None:
    with pytest.raises(ScriptError, match="#script"):
        said(line)


def test_directive_alone_is_not_paced() -> None:
    assert choose("scripted", said('#script {"tokens":5}')).ideal_seconds == 0.0


def test_tool_calls_then_nested_turns() -> None:
    """
    1. a script calls a tool, then another, then answers
    2. after each round of tool results the next turn is told, at the first turn's pace
    3. the call ids of the two rounds differ, and are the same when asked again
    """
    script = {
        "first_s": 0.5,
        "rate": 10,
        "tool_calls": [{"name": "a", "args": {"x": 1}}],
        "then": {"tool_calls": [{"name": "b"}], "then": {"text": "done"}},
    }
    text = f"#script {json.dumps(script)}"
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]}
    answer = {"role": "tool", "tool_call_id": "c", "content": "1"}
    first = choose("scripted", said(text))
    second = choose("scripted", said(text, call, answer))
    third = choose("scripted", said(text, call, answer, call, answer))
    assert [t["function"]["name"] for t in (*first.tool_calls, *second.tool_calls)] == ["a", "b"]
    assert (third.text, third.finish_reason, third.first_s, third.rate) == ("done", "stop", 0.5, 10)
    assert first.tool_calls[0]["id"] != second.tool_calls[0]["id"]
    assert first.tool_calls == choose("scripted", said(text)).tool_calls
    assert scripts.ideal_seconds(Script.model_validate(script)) == pytest.approx(
        sum(turn.ideal_seconds for turn in (first, second, third))
    )


def test_only_the_last_user_message_counts() -> None:
    """
    1. an earlier message in the thread had a directive and tool results
    2. the new message has none
    3. the model behaves by itself
    """
    messages: list[Mapping[str, Any]] = [
        {"role": "user", "content": '#script {"text":"old"}'},
        {"role": "assistant", "content": "old", "tool_calls": [{}]},
        {"role": "tool", "content": "7"},
        {"role": "user", "content": [{"type": "text", "text": "and hello"}]},
    ]
    conversation = read_conversation(messages)
    assert (conversation.directive, conversation.tool_results, conversation.turn) == (None, (), 0)
    assert "scripted model" in choose("scripted", conversation).text


def test_calculates_by_itself() -> None:
    """
    1. a user asks for 6 × 7 and there is a tool `calculate`
    2. the model reasons and calls it
    3. after the result it answers with it
    """
    question = "What is 6 × 7?"
    asked = choose("scripted", said(question), ["current_time", "calculate"])
    assert asked.reasoning
    assert json.loads(asked.tool_calls[0]["function"]["arguments"]) == {"expression": "6 * 7"}
    result = {"role": "tool", "tool_call_id": "c", "content": "42"}
    told = choose("scripted", said(question, {"role": "assistant", "tool_calls": [{}]}, result), ["calculate"])
    assert "42" in told.text
    assert not told.tool_calls


def test_without_the_tool_it_only_talks() -> None:
    assert not choose("scripted", said("What is 6 × 7?"), ["current_time"]).tool_calls


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("What is 6*7?", "6*7"),
        ("1234 × 5678, please.", "1234 * 5678"),
        ("(2 + 3) * 4", "(2 + 3) * 4"),
        ("tell me (that is, 10 / 4) now", "10 / 4"),
        ("2^10", "2**10"),
        ("I have 3 dogs", None),
        ("well-known 2nd", None),
    ],
)
def test_finds_the_expression(text: str, expression: str | None) -> None:
    assert scripts.find_expression(text) == expression


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(scripts.pieces(text)) == text


def test_odd_characters_are_escaped_for_json() -> None:
    """
    1. scripts end a text with NUL and with half a surrogate pair
    2. each delta is valid JSON that gives exactly that text
    """
    for field, end in (("nul", "\0"), ("surrogate", "\ud800")):
        turn = choose("scripted", said(f'#script {{"text":"a 😀","{field}":true}}'))
        assert "".join(json.loads(delta)["content"] for delta in turn.deltas) == "a 😀" + end
