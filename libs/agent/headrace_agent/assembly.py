"""Puts one answer together from a provider's events, telling each piece to a sink on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.content import InvalidToolCall
from langchain_core.messages.tool import ToolCall, invalid_tool_call, tool_call
from uuid_utils import uuid7

from headrace_agent.sink import MessageSink
from headrace_agent.text import clean


class Assembly:
    """The answer so far. One choice only; providers' dialects of reasoning and tool calls come out alike."""

    def __init__(self, sink: MessageSink) -> None:
        self._sink = sink
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._call_at: dict[Any, _Call] = {}
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._about: dict[str, Any] = {}

    def add(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take the next events, in order. The common case is a piece of text and nothing else."""
        for event in events:
            if choices := event.get("choices"):
                choice = choices[0]
                # `message` is what a provider that does not stream sends.
                delta = choice.get("delta") or choice.get("message")
                if delta:
                    if text := delta.get("content"):
                        self._add_text(text)
                    if not text or len(delta) > 1:
                        self._add_rest(delta)
                if finish_reason := choice.get("finish_reason"):
                    self._finish_reason = finish_reason
            if usage := event.get("usage"):
                self._usage = usage
            if not self._about:
                self._about = {"id": event.get("id"), "model_name": event.get("model")}

    def _add_text(self, text: Any) -> None:
        if type(text) is str:
            self._text.append(text)
            self._sink.text(text)
            return
        # Mistral's dialect: a list of text and thinking blocks.
        for block in text:
            if piece := block.get("text"):
                self._add_text(piece)
            for thought in block.get("thinking") or ():
                self._add_reasoning(thought.get("text"))

    def _add_rest(self, delta: Mapping[str, Any]) -> None:
        self._add_reasoning(delta.get("reasoning_content") or delta.get("reasoning"))
        if refusal := delta.get("refusal"):
            self._add_text(refusal)
        for piece in delta.get("tool_calls") or ():
            self._add_tool_call(piece)

    def _add_reasoning(self, text: Any) -> None:
        if text:
            self._reasoning.append(text)
            self._sink.reasoning(text)

    def _add_tool_call(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        given_id, name, args = piece.get("id") or None, function.get("name") or None, function.get("arguments") or ""
        if not isinstance(args, str):
            args = orjson.dumps(args).decode()
        call = self._call_of(piece.get("index"), given_id)
        new_name = name if call.name is None else None
        call.name = call.name or name
        call.args.append(args)
        self._sink.tool_call(call.index, id=None if call.told else call.id, name=new_name, args=args)
        call.told = True

    def _call_of(self, index: int | None, given_id: str | None) -> _Call:
        """Return the call that a piece belongs to: some providers leave the index out, or number every call 0."""
        call = self._call_at.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if call is None or (given_id is not None and given_id != call.id):
            call = _Call(len(self._calls), given_id or f"call_{uuid7().hex}")
            self._calls.append(call)
            self._call_at[index] = call
        return call

    def message(self, message_id: str | None) -> AIMessage:
        """Return the answer. Tool calls whose arguments are no JSON object are its `invalid_tool_calls`."""
        calls: list[ToolCall] = []
        invalid: list[InvalidToolCall] = []
        for call in self._calls:
            call.finish(calls, invalid)
        reasoning = "".join(self._reasoning)
        return AIMessage(
            content="".join(self._text),
            id=message_id,
            additional_kwargs={"reasoning_content": reasoning} if reasoning else {},
            response_metadata=self.response_metadata(),
            tool_calls=calls,
            invalid_tool_calls=invalid,
            usage_metadata=self.usage_metadata(),
        )

    def response_metadata(self) -> dict[str, Any]:
        """Return the provider's id, model and finish_reason, as far as it told them."""
        told = {**self._about, "finish_reason": self._finish_reason}
        return {name: value for name, value in told.items() if value is not None}

    def usage_metadata(self) -> UsageMetadata | None:
        """Return the tokens counted by the provider; None if it counted none."""
        if self._usage is None:
            return None
        given, taken = _count(self._usage, "prompt_tokens"), _count(self._usage, "completion_tokens")
        usage = UsageMetadata(
            input_tokens=given, output_tokens=taken, total_tokens=_count(self._usage, "total_tokens") or given + taken
        )
        if cached := _count(self._usage.get("prompt_tokens_details"), "cached_tokens"):
            usage["input_token_details"] = InputTokenDetails(cache_read=cached)
        if reasoning := _count(self._usage.get("completion_tokens_details"), "reasoning_tokens"):
            usage["output_token_details"] = OutputTokenDetails(reasoning=reasoning)
        return usage


class _Call:
    def __init__(self, index: int, call_id: str) -> None:
        self.index = index
        self.id = call_id
        self.name: str | None = None
        self.args: list[str] = []
        self.told = False

    def finish(self, calls: list[ToolCall], invalid: list[InvalidToolCall]) -> None:
        text = "".join(self.args)
        try:
            args = json.loads(text, strict=False) if text.strip() else {}
            if not isinstance(args, dict):
                raise ValueError("not an object")
            if not self.name:
                raise ValueError("no name")
        except ValueError as error:
            invalid.append(invalid_tool_call(name=self.name, args=clean(text), id=self.id, error=str(error)))
        else:
            # The arguments' own escapes may have brought NUL or half a surrogate pair.
            calls.append(tool_call(name=self.name, args=clean(args), id=self.id))


def _count(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, Mapping) else None
    return int(value) if isinstance(value, int | float) else 0
