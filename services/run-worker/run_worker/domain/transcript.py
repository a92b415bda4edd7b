"""A message as the transcript (table `messages`) and the snapshots of the stream know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["user", "assistant", "tool", "system"]


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """One complete or partial message; `content` is a text or a list of content blocks, as the graph made it."""

    message_id: str
    role: Role
    content: Any
    reasoning: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """Each {id, name, args}."""
    tool_call_id: str = ""
    """Of a tool message: the call that it answers."""
    name: str = ""
    partial: bool = False
    """True for the text of a message that was cut off by a cancel."""

    def as_json(self) -> dict[str, Any]:
        """Return the shape of the SQL function message_json."""
        return {
            "message_id": self.message_id,
            "role": self.role,
            "content": self.content,
            "reasoning": self.reasoning,
            "tool_calls": list(self.tool_calls),
            "tool_call_id": self.tool_call_id,
            "name": self.name,
            "partial": self.partial,
        }
