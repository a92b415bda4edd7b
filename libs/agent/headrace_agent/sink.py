"""Where a run's tokens go, past the framework: one context variable and two protocols that its owner implements.

Invariant: every method is synchronous, returns at once and does no I/O, for it is called once per token.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from langchain_core.messages import AIMessage


class MessageSink(Protocol):
    """One open message of a model. A message that breaks is never closed: whoever owns the sink keeps what it has."""

    def text(self, delta: str) -> None:
        """Take the next piece of the answer's text; never empty."""

    def reasoning(self, delta: str) -> None:
        """Take the next piece of the model's reasoning text; never empty."""

    def tool_call(self, index: int, *, id: str | None, name: str | None, args: str) -> None:  # noqa: A002 - the wire's word
        """Take the next piece of tool call `index`: `id` and `name` come once, `args` is a piece of JSON text."""

    def close(self, message: AIMessage) -> None:
        """Take the complete message; nothing follows it."""


class RunSink(Protocol):
    """The sink of one run, set by whoever executes it."""

    def open_message(self, message_id: str, metadata: Mapping[str, Any]) -> MessageSink:
        """Open a message that will have `message_id` in the graph's state too.

        `metadata` holds `langgraph_node` and `langgraph_checkpoint_ns` where the graph gave them.
        """
        ...

    def may_call_model(self) -> None:
        """Return if a model may be called now; raise if the run's lease is over."""


current_sink: ContextVar[RunSink | None] = ContextVar("headrace_current_sink", default=None)
"""The sink of the run that this task belongs to; None outside Headrace."""
