"""Messages that only a graph's state has: nodes return dicts, pairs or texts, and the reducer makes them messages.

LangGraph's `messages` mode tells what nodes return as message objects. What it passes over is found here in the state
after each step, under the id that the state, the transcript and the result have.
Invariant: no message is told twice, and the state that a run begins with is not told at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from run_worker.adapters.wire import converted, raw_messages, text_and_reasoning


class MessagePiece(NamedTuple):
    """A `messages` item of the stream: a chunk of a foreign model, or a complete message."""

    message: BaseMessage
    metadata: Mapping[str, Any]


class Told(Protocol):
    """What the run's viewers have been told: its buffer."""

    def known(self, message_id: str) -> bool:
        """Say whether the message was told already, whole or in pieces."""
        ...

    def streamed(self, text: str, *, calls: bool, but: AbstractSet[str]) -> str | None:
        """Return the id of a message that was told in pieces and has this text, and whose id is none of `but`."""
        ...


def place_id(run_id: UUID, index: int) -> str:
    """Return the id of a message that has none, by its place in the state."""
    return f"unnamed-{run_id}-{index}"


class StateMessages:
    """One attempt's. `updated` takes what stream mode `updates` gives, `untold` what `values` gives, as they come."""

    def __init__(self, run_id: UUID, told: Told) -> None:
        self._run_id = run_id
        self._told = told
        self._begun = False
        self._done: dict[str, Any] = {}
        self._retold: set[str] = set()
        self._returned: list[tuple[str, Any]] = []

    def updated(self, updates: Any) -> None:
        """Note which nodes returned something that is no message object."""
        self._begun = True
        for node, delta in updates.items() if isinstance(updates, Mapping) else ():
            for part in delta if isinstance(delta, list) else [delta]:
                given = part.get("messages") if isinstance(part, Mapping) else None
                for raw in given if isinstance(given, list) else [given]:
                    if raw is not None and not isinstance(raw, BaseMessage):
                        self._returned.append((str(node), _raw_content(raw)))

    def untold(self, values: Any) -> Iterator[MessagePiece]:
        """Yield the model's and the tools' messages of the state that nobody has told."""
        found = raw_messages(values)
        new: list[tuple[str, BaseMessage]] = []
        ids: set[str] = set()
        for index, raw in enumerate(found):
            message_id = _raw_id(raw) or place_id(self._run_id, index)
            ids.add(message_id)
            done = self._done.get(message_id)
            self._done[message_id] = raw
            # The same id with other content is another message: of a graph that gives each turn's answer the same id.
            if done is not None and (done is raw or _raw_content(done) == _raw_content(raw)):
                continue
            if self._begun and not self._told.known(message_id) and (message := converted(raw)) is not None:
                new.append((message_id, message))
        for message_id, message in new:
            if isinstance(message, AIMessage | ToolMessage) and not self._is_retold(message, ids):
                named = message if message.id == message_id else message.model_copy(update={"id": message_id})
                yield MessagePiece(named, self._metadata(message))
        self._returned.clear()

    def _is_retold(self, message: BaseMessage, ids: set[str]) -> bool:
        """Say whether a model's message was streamed under its own id, and the node put its text into another one."""
        if not isinstance(message, AIMessage):
            return False
        text, _ = text_and_reasoning(message.content, message.additional_kwargs)
        streamed = self._told.streamed(text, calls=bool(message.tool_calls), but=ids | self._retold) if text else None
        if streamed is not None:
            self._retold.add(streamed)
        return streamed is not None

    def _metadata(self, message: BaseMessage) -> Mapping[str, Any]:
        nodes = [node for node, content in self._returned if content == message.content]
        nodes = nodes or list(dict.fromkeys(node for node, _ in self._returned))
        return {"langgraph_node": nodes[0]} if nodes else {}


def _raw_id(raw: Any) -> str | None:
    found = raw.get("id") if isinstance(raw, Mapping) else getattr(raw, "id", None)
    return found if isinstance(found, str) and found else None


def _raw_content(raw: Any) -> Any:
    if isinstance(raw, BaseMessage | Mapping):
        return raw.content if isinstance(raw, BaseMessage) else raw.get("content")
    return raw[-1] if isinstance(raw, Sequence) and not isinstance(raw, str) and raw else raw
