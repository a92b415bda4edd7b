"""The sinks of calls outside a run: one drops the pieces, one makes LangChain's chunks of them."""

from __future__ import annotations

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk


class NoSink:
    """Wants the finished message only."""

    def text(self, delta: str) -> None:
        """Drop it."""

    def reasoning(self, delta: str) -> None:
        """Drop it."""

    def tool_call(self, index: int, *, id: str | None, name: str | None, args: str) -> None:  # noqa: A002 - see sink
        """Drop it."""

    def close(self, message: AIMessage) -> None:
        """Drop it."""


class Chunks(NoSink):
    """Makes LangChain's chunks of the pieces."""

    def __init__(self) -> None:
        self._made: list[ChatGenerationChunk] = []

    def take(self) -> list[ChatGenerationChunk]:
        """Return the chunks made since the last call."""
        made, self._made = self._made, []
        return made

    def text(self, delta: str) -> None:
        """Make a chunk of text."""
        self._made.append(ChatGenerationChunk(message=AIMessageChunk(content=delta)))

    def reasoning(self, delta: str) -> None:
        """Make a chunk of reasoning."""
        self._made.append(
            ChatGenerationChunk(
                message=AIMessageChunk(content="", additional_kwargs={"reasoning_content": delta}),
            )
        )

    def tool_call(self, index: int, *, id: str | None, name: str | None, args: str) -> None:  # noqa: A002 - see sink
        """Make a chunk of a tool call."""
        piece = tool_call_chunk(name=name, args=args, id=id, index=index)
        self._made.append(ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[piece])))
