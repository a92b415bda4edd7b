"""The chat model for graphs: any OpenAI-compatible provider, streamed past the framework where a run has a sink."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field, SecretStr
from uuid_utils import uuid7

from headrace_agent.addresses import REASON, SETTING, checked
from headrace_agent.assembly import Assembly
from headrace_agent.blocking import iterate_blocking, run_blocking
from headrace_agent.chunks import Chunks, NoSink
from headrace_agent.errors import ModelRefused
from headrace_agent.provider import Answer, ModelCall
from headrace_agent.sink import MessageSink, RunSink, current_sink
from headrace_agent.structured import Method, structured


def _env_text(name: str) -> Callable[[], str]:
    return lambda: os.environ.get(name, "")


def _env_secret(name: str) -> Callable[[], SecretStr]:
    return lambda: SecretStr(os.environ.get(name, ""))


AnyRunManager: TypeAlias = AsyncCallbackManagerForLLMRun | CallbackManagerForLLMRun

NO_STREAM_TAGS = frozenset({"nostream", "langsmith:nostream"})
"""LangGraph's tags for a model call whose tokens nobody should see."""


class ChatModel(BaseChatModel):
    """A chat model behind an OpenAI-compatible `/chat/completions`.

    Inside a Headrace run its tokens go straight to the run's stream and the graph gets the finished message; everywhere
    else it is an ordinary LangChain chat model, with `invoke`, `stream`, `ainvoke`, `astream` and callbacks.

    Errors: `ModelRefused`, `ModelUnavailable`, `ModelTimeout` (see `headrace_agent.errors`).
    """

    model: str = Field(default_factory=_env_text("HEADRACE_MODEL_NAME"))
    """Name of the model at the provider; default HEADRACE_MODEL_NAME, read when the object is made."""
    base_url: str = Field(default_factory=_env_text("HEADRACE_MODEL_BASE_URL"))
    """Everything before `/chat/completions`; default HEADRACE_MODEL_BASE_URL."""
    api_key: SecretStr = Field(default_factory=_env_secret("HEADRACE_MODEL_API_KEY"))
    """Sent as a bearer token if not empty; default HEADRACE_MODEL_API_KEY."""
    temperature: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    extra: dict[str, Any] = Field(default_factory=dict)
    """More fields of the request body; a field whose value is None is left out (`{"stream_options": None}`)."""
    first_byte_timeout_seconds: float = Field(default=60.0, gt=0)
    """How long one try may take until the first event of the answer."""
    silence_timeout_seconds: float = Field(default=60.0, gt=0)
    """How long the provider may be silent inside an answer."""
    max_retries: int = Field(default=2, ge=0)
    """Tries after the first, only while nothing of the answer has come."""

    @property
    def _llm_type(self) -> str:
        return "headrace"

    @property
    def lc_secrets(self) -> dict[str, str]:
        """Where the key comes from when the object is serialised; the key itself never is."""
        return {"api_key": "HEADRACE_MODEL_API_KEY"}

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "base_url": self.base_url, "temperature": self.temperature, **self.extra}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return LangSmithParams(
            ls_provider="openai-compatible", ls_model_name=kwargs.get("model") or self.model, ls_model_type="chat"
        )

    def _should_stream(self, *, async_api: bool, run_manager: AnyRunManager | None = None, **kwargs: Any) -> bool:
        # LangGraph's `messages` mode asks for chunks by attaching a handler; under a sink they are told already.
        if async_api and _listening_sink(run_manager) is not None:
            return False
        return super()._should_stream(async_api=async_api, run_manager=run_manager, **kwargs)

    def _should_use_protocol_streaming(
        self, *, async_api: bool, run_manager: AnyRunManager | None = None, **kwargs: Any
    ) -> bool:
        if async_api and _listening_sink(run_manager) is not None:
            return False
        return super()._should_use_protocol_streaming(async_api=async_api, run_manager=run_manager, **kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(messages, stop, kwargs)
        run_sink = _listening_sink(run_manager)
        async with Answer(call, paced=run_sink is not None) as answer:
            message_id = f"msg_{uuid7().hex}"
            sink: MessageSink = NoSink()
            if run_sink is not None:
                sink = run_sink.open_message(message_id, _place(run_manager))
            assembly = Assembly(sink)
            while events := await answer.batch():
                assembly.add(events)
        message = assembly.message(message_id)
        sink.close(message)
        return ChatResult(generations=[ChatGeneration(message=message, generation_info=message.response_metadata)])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        # LangChain itself tells the callbacks of each chunk.
        async with aclosing(self._chunks(messages, stop, kwargs)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _chunks(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        kwargs: Mapping[str, Any],
    ) -> AsyncGenerator[ChatGenerationChunk, None]:
        call = self._call(messages, stop, kwargs)
        chunks = Chunks()
        assembly = Assembly(chunks)
        async with Answer(call) as answer:
            while events := await answer.batch():
                assembly.add(events)
                for chunk in chunks.take():
                    yield chunk
        whole = assembly.message(None)
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                usage_metadata=whole.usage_metadata,
                response_metadata=whole.response_metadata,
                chunk_position="last",
            )
        )

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        _check_lease()
        return run_blocking(lambda: self._agenerate(messages, stop, None, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        _check_lease()
        yield from iterate_blocking(lambda: self._chunks(messages, stop, kwargs))

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return this model with tools.

        `tool_choice` is a tool's name, `auto`, `none`, `required` (or `any`, or True), or the provider's own object.
        """
        converted = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        choice: Any = tool_choice
        if tool_choice is True or tool_choice == "any":
            choice = "required"
        elif isinstance(tool_choice, str) and tool_choice not in ("auto", "none", "required"):
            choice = {"type": "function", "function": {"name": tool_choice}}
        options = {"tool_choice": choice or None, "parallel_tool_calls": parallel_tool_calls}
        return self.bind(
            tools=converted, **{name: value for name, value in options.items() if value is not None}, **kwargs
        )

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        method: Method = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return a runnable whose answer has the shape of `schema` (pydantic class, TypedDict or JSON schema)."""
        if kwargs:
            raise ValueError(f"with_structured_output does not know {sorted(kwargs)}")
        return structured(self, schema, method=method, strict=strict, include_raw=include_raw)

    def _call(self, messages: list[BaseMessage], stop: list[str] | None, options: Mapping[str, Any]) -> ModelCall:
        run_sink = current_sink.get()
        body: dict[str, Any] = {
            "model": self.model,
            "messages": convert_to_openai_messages(messages),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "stop": stop or self.stop,
            **self.extra,
            "stream_options": self.extra.get("stream_options", {"include_usage": True}),
            **options,
            "stream": True,
        }
        key = self.api_key.get_secret_value()
        _check_configured(base_url=self.base_url, model=body["model"])
        base_url = checked(self.base_url, key)
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return ModelCall(
            url=f"{base_url}/chat/completions",
            headers=headers,
            body={name: value for name, value in body.items() if value is not None},
            first_byte_seconds=self.first_byte_timeout_seconds,
            silence_seconds=self.silence_timeout_seconds,
            max_retries=self.max_retries,
            may_call=run_sink.may_call_model if run_sink is not None else _always,
            secret=key,
        )


def _listening_sink(run_manager: AnyRunManager | None) -> RunSink | None:
    """Return the run's sink, unless the graph's author tagged this call as not to be streamed."""
    if run_manager is not None and not NO_STREAM_TAGS.isdisjoint(run_manager.tags):
        return None
    return current_sink.get()


def _place(run_manager: AsyncCallbackManagerForLLMRun | None) -> dict[str, Any]:
    """Return which node of the graph calls, as LangGraph tells it in the run manager's metadata."""
    metadata = (run_manager.metadata if run_manager is not None else None) or {}
    return {name: metadata[name] for name in ("langgraph_node", "langgraph_checkpoint_ns") if name in metadata}


def _check_configured(**given: str) -> None:
    settings = {"base_url": SETTING, "model": "HEADRACE_MODEL_NAME"}
    missing = [name for name, value in given.items() if not (value and value.strip())]
    if missing:
        told = " and ".join(f"{settings[name]} is not set" for name in missing)
        arguments = ", ".join(f"{name}=…" for name in missing)
        raise ModelRefused(
            f"no model is configured: {told}, and ChatModel({arguments}) was not given", status=None, reason=REASON
        )


def _always() -> None:
    """Outside a run there is no lease."""


def _check_lease() -> None:
    # In a synchronous node: the call itself runs without the sink, on another loop.
    if (run_sink := current_sink.get()) is not None:
        run_sink.may_call_model()
