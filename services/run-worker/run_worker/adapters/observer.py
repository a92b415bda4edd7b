"""What LangChain's callbacks tell about a run: spans, `tool` events, usage, and the calls that are in flight.

Invariant: no content enters a span, and nothing here happens per token except one clock read for foreign models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from uuid import UUID

from headrace_contract.projection import EventName
from headrace_contract.telemetry import SPAN_CHAT, SPAN_EXECUTE_TOOL
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.errors import GraphBubbleUp
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from run_worker.adapters.wire import json_default, to_transcript, usage_of
from run_worker.domain.encoding import json_bytes
from run_worker.domain.limits import OpenCall
from run_worker.domain.transcript import TranscriptMessage

_SUMMED = ("input_tokens", "output_tokens", "total_tokens")


class Told(Protocol):
    """Where the observer tells what it sees: the run's buffer."""

    def may_call_model(self) -> None:
        """Raise when no call may be made any more."""

    def emit(self, event: str, data: bytes, *, head: Mapping[str, Any] | None = None) -> None:
        """Queue an event."""

    def announce(self, message: TranscriptMessage) -> None:
        """Take a model's complete message, whose last pieces may still be on their way."""


class RunObserver(BaseCallbackHandler):
    """One attempt's callbacks. They run inline, in order, and refuse a call when the lease is over."""

    run_inline = True
    raise_error = True

    def __init__(self, told: Told, *, on_tool: Callable[[str, str, str], None], tracer: trace.Tracer) -> None:
        """`on_tool(call_id, name, phase)` notes where a tool call stands; spans are children of the current one."""
        self.models: dict[UUID, OpenCall] = {}
        self.tools: dict[UUID, OpenCall] = {}
        self.usage: dict[str, int] = {}
        self._told = told
        self._on_tool = on_tool
        self._tracer = tracer
        self._parent = otel_context.get_current()
        self._spans: dict[UUID, Span] = {}
        self._calls: dict[UUID, tuple[str, str]] = {}

    # --- models ---------------------------------------------------------------------------------------------------

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[Any]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a model call, unless the lease is over."""
        self._model_start(run_id, metadata or {}, kwargs.get("invocation_params") or {})

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a call of a model that is not a chat model."""
        self._model_start(run_id, metadata or {}, kwargs.get("invocation_params") or {})

    def _model_start(self, run_id: UUID, metadata: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        self._told.may_call_model()
        name = str(params.get("model") or params.get("model_name") or metadata.get("ls_model_name") or "unknown")
        self.models[run_id] = OpenCall(started_at=time.monotonic(), name=name)
        self._spans[run_id] = self._tracer.start_span(
            SPAN_CHAT,
            context=self._parent,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": name,
                "gen_ai.provider.name": str(metadata.get("ls_provider") or "unknown"),
            },
        )

    def on_llm_new_token(self, token: str | list[str | dict[str, Any]], *, run_id: UUID, **kwargs: Any) -> None:
        """Note that a foreign model is alive."""
        call = self.models.get(run_id)
        if call is not None:
            call.heard_at = time.monotonic()

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a model call: usage, span, and the message if it was streamed."""
        call = self.models.pop(run_id, None)
        generation = response.generations[0][0] if response.generations and response.generations[0] else None
        usage: Mapping[str, Any] = {}
        if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
            usage = usage_of(generation.message)
            if generation.message.id:
                self._told.announce(to_transcript(generation.message))
        if call is not None:
            self.usage["model_calls"] = self.usage.get("model_calls", 0) + 1
            for key in _SUMMED:
                if isinstance(usage.get(key), int):
                    self.usage[key] = self.usage.get(key, 0) + usage[key]
        span = self._spans.pop(run_id, None)
        if span is not None:
            for key in _SUMMED[:2]:
                if isinstance(usage.get(key), int):
                    span.set_attribute(f"gen_ai.usage.{key}", usage[key])
            span.end()

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a model call that failed."""
        self.models.pop(run_id, None)
        self._fail(run_id, error)

    # --- tools ----------------------------------------------------------------------------------------------------

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a tool call, unless the lease is over."""
        self._told.may_call_model()
        name = str((serialized or {}).get("name") or kwargs.get("name") or "tool")
        call_id = str(kwargs.get("tool_call_id") or run_id)
        self.tools[run_id] = OpenCall(started_at=time.monotonic(), name=name)
        self._calls[run_id] = (call_id, name)
        self._spans[run_id] = self._tracer.start_span(
            SPAN_EXECUTE_TOOL,
            context=self._parent,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.call.id": call_id,
            },
        )
        self._tool_event(run_id, "started", {"input": inputs if inputs is not None else input_str})

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a tool call; a tool that answered with an error has failed."""
        failed = isinstance(output, ToolMessage) and output.status == "error"
        content = output.content if isinstance(output, ToolMessage) else output
        self._tool_event(run_id, "failed" if failed else "finished", {"output": content})
        self._close_tool(run_id)
        span = self._spans.pop(run_id, None)
        if span is not None:
            span.end()

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Close a tool call that raised; an interrupt inside a tool is a question, not a failure."""
        if not isinstance(error, GraphBubbleUp):
            self._tool_event(run_id, "failed", {"output": f"{type(error).__name__}: {error}"})
        self._close_tool(run_id)
        self._fail(run_id, error)

    def _tool_event(self, run_id: UUID, phase: str, more: Mapping[str, Any]) -> None:
        call = self.tools.get(run_id)
        if call is None:
            return
        call_id, name = self._calls[run_id]
        head: dict[str, Any] = {"id": call_id, "name": name, "phase": phase}
        if phase != "started":
            head["ms"] = round((time.monotonic() - call.started_at) * 1000)
        data = {**head, **more}
        self._on_tool(call_id, name, phase)
        self._told.emit(EventName.TOOL, json_bytes(data, json_default), head=head)

    def _close_tool(self, run_id: UUID) -> None:
        self.tools.pop(run_id, None)
        self._calls.pop(run_id, None)

    # --- both -----------------------------------------------------------------------------------------------------

    def _fail(self, run_id: UUID, error: BaseException) -> None:
        span = self._spans.pop(run_id, None)
        if span is not None:
            if not isinstance(error, GraphBubbleUp):
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            span.end()

    def close(self) -> None:
        """End the spans of calls that were cut off."""
        for span in self._spans.values():
            span.set_status(Status(StatusCode.ERROR, "cut off"))
            span.end()
        self._spans.clear()
        self.models.clear()
        self.tools.clear()
