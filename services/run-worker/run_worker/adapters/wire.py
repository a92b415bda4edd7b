"""LangChain's messages in this house's shapes: the transcript's, and the wire's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.messages.utils import convert_to_messages

from run_worker.domain.encoding import clean_text, cleaned, plain
from run_worker.domain.transcript import Role, TranscriptMessage

_ROLES: Final[Mapping[str, Role]] = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "tool": "tool",
    "function": "tool",
    "system": "system",
    "developer": "system",
}

METADATA_KEYS: Final = ("langgraph_node", "langgraph_checkpoint_ns")
"""What of LangGraph's metadata goes with a `messages` event."""


def json_default(value: Any) -> Any:
    """Encode what graphs put into events: messages by their fields, interrupts by id and value."""
    if isinstance(value, BaseMessage):
        return value.model_dump()
    return plain(value)


def wire_message(message: BaseMessage) -> dict[str, Any]:
    """Return a complete message in LangChain's wire shape ({"type": "ai" | "tool" | …, "id", "content", …})."""
    told = message.model_dump()
    if isinstance(message, AIMessageChunk):
        told["type"] = "ai"
    return told


def text_and_reasoning(content: Any, additional: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text and the reasoning text of a message's content, which may be a text or a list of blocks."""
    reasoning = additional.get("reasoning_content") or ""
    if isinstance(content, str):
        return content, reasoning if isinstance(reasoning, str) else ""
    texts, thoughts = [], [reasoning] if isinstance(reasoning, str) and reasoning else []
    for block in content if isinstance(content, Iterable) else ():
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, Mapping):
            if isinstance(block.get("text"), str):
                texts.append(block["text"])
            thoughts.extend(block[key] for key in ("reasoning", "thinking") if isinstance(block.get(key), str))
    return "".join(texts), "".join(thoughts)


def to_transcript(message: BaseMessage, message_id: str | None = None) -> TranscriptMessage:
    """Return a message as the transcript has it; its id is `message_id` or its own, which must not be None."""
    content = message.content
    _, reasoning = text_and_reasoning(content, message.additional_kwargs)
    calls = [
        {"id": call.get("id") or "", "name": call["name"], "args": call["args"]}
        for call in (message.tool_calls if isinstance(message, AIMessage) else ())
    ]
    return TranscriptMessage(
        message_id=clean_text(message_id or message.id or ""),
        role=_ROLES.get(message.type, "assistant"),
        content=cleaned(content) if isinstance(content, str | list) else clean_text(str(content)),
        reasoning=clean_text(reasoning),
        tool_calls=calls,
        tool_call_id=clean_text(message.tool_call_id) if isinstance(message, ToolMessage) else "",
        name=clean_text(message.name or ""),
    )


def raw_messages(values: Any) -> Sequence[Any]:
    """Return what a graph's state has as its messages, as it has them; nothing if that is no list."""
    found = values.get("messages") if isinstance(values, Mapping) else getattr(values, "messages", None)
    if isinstance(values, list):
        found = values
    return found if isinstance(found, Sequence) and not isinstance(found, str) else ()


def converted(raw: Any) -> BaseMessage | None:
    """Return a message object for any of LangChain's forms of a message, None for what is none."""
    if isinstance(raw, BaseMessage):
        return raw
    try:
        return convert_to_messages([raw])[0]
    except (ValueError, TypeError, KeyError, NotImplementedError):
        return None


def state_messages(values: Any) -> list[BaseMessage]:
    """Return the messages of a graph's state; none if it has no `messages` or one of them is something else."""
    found = [converted(raw) for raw in raw_messages(values)]
    return [] if None in found else [message for message in found if message is not None]


def partial_ai_message(message: TranscriptMessage) -> AIMessage:
    """Return a cut-off message as the checkpoint keeps it."""
    extra = {"reasoning_content": message.reasoning} if message.reasoning else {}
    return AIMessage(
        content=message.content,
        id=message.message_id,
        additional_kwargs=extra,
        response_metadata={"partial": True},
    )


def usage_of(message: BaseMessage) -> Mapping[str, Any]:
    """Return the token counts that the provider gave with a message."""
    return (message.usage_metadata or {}) if isinstance(message, AIMessage) else {}
