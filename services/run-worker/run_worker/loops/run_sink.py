"""The sinks of a model's open message (headrace_agent.sink.MessageSink): called once per token, so nearly nothing."""

from __future__ import annotations

from typing import Protocol

from langchain_core.messages import AIMessage

from run_worker.adapters.wire import to_transcript
from run_worker.domain.picture import PictureMessage
from run_worker.domain.transcript import TranscriptMessage


class Heard(Protocol):
    """The run's buffer, as a sink knows it."""

    activity: int

    def touched(self, message: PictureMessage, size: int) -> None:
        """Note a new piece of an open message."""

    def close_message(self, message: TranscriptMessage) -> None:
        """Complete an open message."""


class OpenSink:
    """The open message of a model: each method is one append and a flag."""

    __slots__ = ("_buffer", "_message", "_reasoning", "_text")

    def __init__(self, buffer: Heard, message: PictureMessage) -> None:
        self._buffer = buffer
        self._message = message
        self._text = message.text.parts
        self._reasoning = message.reasoning.parts

    def text(self, delta: str) -> None:
        """Take a piece of text."""
        self._text.append(delta)
        self._buffer.touched(self._message, len(delta))

    def reasoning(self, delta: str) -> None:
        """Take a piece of reasoning text."""
        self._reasoning.append(delta)
        self._buffer.touched(self._message, len(delta))

    def tool_call(self, index: int, *, id: str | None, name: str | None, args: str) -> None:  # noqa: A002  # the port's
        """Take a piece of a tool call."""
        call = self._message.call(index)
        if id:
            call.id = id
        if name:
            call.name = name
        if args:
            call.args.parts.append(args)
        self._buffer.touched(self._message, len(args) + 1)

    def close(self, message: AIMessage) -> None:
        """Complete the message."""
        self._buffer.close_message(to_transcript(message, self._message.message_id))


class UnheardSink:
    """The sink of a message that this run's viewers did not ask for (of a subgraph): it only counts as activity."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: Heard) -> None:
        self._buffer = buffer

    def text(self, delta: str) -> None:
        """Count it."""
        self._buffer.activity += 1

    def reasoning(self, delta: str) -> None:
        """Count it."""
        self._buffer.activity += 1

    def tool_call(self, index: int, *, id: str | None, name: str | None, args: str) -> None:  # noqa: A002  # the port's
        """Count it."""
        self._buffer.activity += 1

    def close(self, message: AIMessage) -> None:
        """Count it."""
        self._buffer.activity += 1
