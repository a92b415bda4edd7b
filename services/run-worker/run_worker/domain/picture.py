"""What a viewer of a run should see now: its messages, closed and open, its tool calls and its open questions.

Invariant: a piece of text is stored once; what was not told yet is the tail behind `told`, so that a delta and a
snapshot can never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from run_worker.domain.encoding import json_bytes
from run_worker.domain.transcript import TranscriptMessage

TRUNCATED_TEXT_CHARS: Final = 2_000
"""What stays of a message's text in a snapshot that would be too large for one event."""


class Pieces:
    """Text that arrives in pieces; `told` of them have been told."""

    __slots__ = ("parts", "told")

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.told = 0

    def untold(self) -> str:
        """Return what was not told yet, and count it as told; its pieces become one."""
        end = len(self.parts)
        if end == self.told:
            return ""
        text = "".join(self.parts[self.told : end])
        self.parts[self.told : end] = [text]
        self.told += 1
        return text

    def __str__(self) -> str:
        return "".join(self.parts)


class Call:
    """One tool call of an open message, as its pieces come."""

    __slots__ = ("args", "head_told", "id", "name")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name: str | None = None
        self.args = Pieces()
        self.head_told = False

    def untold(self, index: int) -> dict[str, Any] | None:
        """Return the next chunk in LangChain's shape; id and name come with the first one only."""
        args = self.args.untold()
        if self.head_told and not args:
            return None
        chunk = {
            "type": "tool_call_chunk",
            "index": index,
            "id": None if self.head_told else self.id,
            "name": None if self.head_told else self.name,
            "args": args,
        }
        self.head_told = True
        return chunk


class PictureMessage:
    """One message of the run: open while it has no `final`.

    A foreign model's end is heard before its last pieces (they wait in the framework's queue): its `announced` message
    counts as final only once all of its text has come.
    """

    __slots__ = ("announced", "calls", "final", "message_id", "metadata_json", "node", "reasoning", "text", "top_level")

    def __init__(self, message_id: str, metadata: Mapping[str, Any], *, top_level: bool = True) -> None:
        self.message_id = message_id
        self.node = str(metadata.get("langgraph_node", ""))
        self.metadata_json = json_bytes(dict(metadata))
        self.top_level = top_level
        self.text = Pieces()
        self.reasoning = Pieces()
        self.calls: dict[int, Call] = {}
        self.final: TranscriptMessage | None = None
        self.announced: TranscriptMessage | None = None

    def whole(self) -> TranscriptMessage | None:
        """Return the complete message, None while pieces are missing."""
        if self.final is None and self.announced is not None:
            content = self.announced.content
            if not isinstance(content, str) or len(str(self.text)) >= len(content):
                self.final = self.announced
        return self.final

    def call(self, index: int) -> Call:
        """Return the tool call at `index`, a new one at its first piece."""
        found = self.calls.get(index)
        if found is None:
            found = self.calls[index] = Call()
        return found

    def untold(self) -> bytes | None:
        """Return the data of the next `messages` event, or None when everything was told."""
        text, reasoning = self.text.untold(), self.reasoning.untold()
        chunks = [c for i, call in self.calls.items() if (c := call.untold(i)) is not None] if self.calls else []
        if not (text or reasoning or chunks):
            return None
        chunk: dict[str, Any] = {"type": "AIMessageChunk", "id": self.message_id, "content": text}
        if reasoning:
            chunk["additional_kwargs"] = {"reasoning_content": reasoning}
        if chunks:
            chunk["tool_call_chunks"] = chunks
        return b"[" + json_bytes(chunk) + b"," + self.metadata_json + b"]"

    def partial(self) -> TranscriptMessage:
        """Return what there is of an open message: its text; half a tool call means nothing."""
        return TranscriptMessage(
            message_id=self.message_id,
            role="assistant",
            content=str(self.text),
            reasoning=str(self.reasoning),
            partial=True,
        )


class Picture:
    """The run's picture; grows with the run's own messages only."""

    def __init__(self) -> None:
        self.messages: dict[str, PictureMessage] = {}
        self.tools: dict[str, dict[str, Any]] = {}
        self.interrupts: list[Mapping[str, Any]] = []

    def open(self, message_id: str, metadata: Mapping[str, Any], *, top_level: bool = True) -> PictureMessage:
        """Open a message, or return the one that already has this id."""
        found = self.messages.get(message_id)
        if found is None:
            found = self.messages[message_id] = PictureMessage(message_id, metadata, top_level=top_level)
        return found

    def put(self, message: TranscriptMessage, metadata: Mapping[str, Any] | None = None) -> bool:
        """Put a complete message, or complete an open one; False if it was complete already."""
        found = self.open(message.message_id, metadata or {})
        known = found.final is not None
        found.final = message
        return not known

    def tool(self, call_id: str, name: str, phase: str) -> None:
        """Note where a tool call stands."""
        self.tools[call_id] = {"id": call_id, "name": name, "phase": phase}

    def open_messages(self) -> list[PictureMessage]:
        """Return the messages that were begun and not completed, with some text."""
        return [m for m in self.messages.values() if m.whole() is None and (m.text.parts or m.reasoning.parts)]

    def snapshot(self, max_bytes: int) -> bytes:
        """Return the data of a `snapshot` event of at most `max_bytes`; over it, old messages are cut first."""
        messages = [(m.whole() or m.partial()).as_json() for m in self.messages.values()]
        rest = {"tool_calls": list(self.tools.values()), "interrupts": list(self.interrupts)}
        encoded = json_bytes({"messages": messages, **rest})
        over = len(encoded) - max_bytes
        if over > 0:
            for message in messages:
                over -= _cut(message)
                if over <= 0:
                    break
            encoded = json_bytes({"messages": messages, **rest})
        if len(encoded) > max_bytes:
            marker = {"truncated": True, "bytes": len(encoded), "where": "message"}
            return json_bytes({"messages": [], "tool_calls": [], "interrupts": [], **marker})
        return encoded


def _cut(message: dict[str, Any]) -> int:
    """Cut a message; return by how many bytes its JSON became shorter, negative if it was short already."""
    size = len(json_bytes(message))
    content = message["content"]
    message["content"] = content[:TRUNCATED_TEXT_CHARS] if isinstance(content, str) else ""
    message["reasoning"] = ""
    message["tool_calls"] = [{**call, "args": {}} for call in message["tool_calls"]]
    message["truncated"] = {"truncated": True, "bytes": size, "where": "message"}
    return size - len(json_bytes(message))


def cut_event(event: str, data: bytes, head: Mapping[str, Any] | None = None) -> bytes:
    """Return what stands for an event that is too large: a typed marker that says where the whole is."""
    marker = {"truncated": True, "bytes": len(data), "where": "message" if event == "messages" else "result"}
    if event == "messages":
        return json_bytes([{**(head or {}), "content": "", **marker}, {}])
    return json_bytes({**(head or {}), **marker})


def unanswered_calls(messages: Sequence[TranscriptMessage]) -> list[Mapping[str, Any]]:
    """Return the tool calls that no tool message answers, of the messages in their order."""
    answered = {message.tool_call_id for message in messages if message.role == "tool"}
    return [call for message in messages for call in message.tool_calls if call.get("id") not in answered]
