"""One run of a LangGraph graph: its config, its stream, and what its state says before and after.

Invariant: the input is applied iff the thread's latest checkpoint does not carry this run_id; the run_id in the graph's
config is the same over all attempts.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from headrace_contract.projection import EventName
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langgraph.types import Command

from run_worker.adapters.claims import ClaimedRun
from run_worker.adapters.observer import RunObserver
from run_worker.adapters.patient_saver import PatientSaver
from run_worker.adapters.state_messages import MessagePiece, StateMessages, Told, place_id
from run_worker.adapters.wire import (
    METADATA_KEYS,
    json_default,
    partial_ai_message,
    state_messages,
    text_and_reasoning,
    to_transcript,
    wire_message,
)
from run_worker.domain.encoding import clean_text, cleaned, json_bytes
from run_worker.domain.picture import unanswered_calls
from run_worker.domain.transcript import TranscriptMessage

CANCELLED_CALL: Final = "The run was stopped before this call finished."
"""Content of the tool message that answers a call which a stop cut off: providers refuse a history with open calls."""

_UNNAMED: Final = re.compile("unnamed-[0-9a-f-]{36}-[0-9]+")
"""Ids that place_id makes."""
_REUSED: Final = re.compile("(.+)#[0-9]+", re.DOTALL)
"""Ids that own_id makes."""


@dataclass(frozen=True, slots=True)
class Before:
    """What the thread's checkpoint says before this attempt runs."""

    resumed: bool
    """The latest checkpoint is this run's own: its input was applied."""
    known: Mapping[str, BaseMessage | Sequence[Any]]
    """What the messages said that are not this run's, by id: each as it was, or its [content, tool_calls]."""
    known_count: int
    own: Sequence[TranscriptMessage] = ()
    """This run's messages of former attempts."""


@dataclass(frozen=True, slots=True)
class After:
    """What the thread's checkpoint says after this attempt ran."""

    messages: Sequence[TranscriptMessage]
    """This run's, without the user's."""
    output_message_id: str | None
    checkpoint_id: str | None
    interrupts: Sequence[Mapping[str, Any]]
    paused: bool
    """Nodes are left to run: the graph stopped at an interrupt or a breakpoint."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An item of another stream mode, encoded."""

    event: str
    data: bytes


class GraphRun:
    """A graph with its fenced saver, bound to one attempt of one run."""

    def __init__(self, claimed: ClaimedRun, graph: Any, saver: PatientSaver, *, recursion_limit: int | None) -> None:
        """`graph` already has `saver` as its checkpointer."""
        self._run = claimed
        self._graph = graph
        self._saver = saver
        self._recursion_limit = recursion_limit

    @property
    def thread_config(self) -> dict[str, Any]:
        """The thread's latest state, for reading and updating it as this run."""
        return run_config(self._run)

    async def stream(
        self, *, resumed: bool, observer: RunObserver, told: Told, durability: str
    ) -> AsyncGenerator[MessagePiece | StreamEvent, None]:
        """Execute the graph and yield what it streams; `told` knows what viewers have seen."""
        run = self._run
        config = run_config(run, resumed=resumed)
        config["callbacks"] = [observer]
        if self._recursion_limit is not None:
            config.setdefault("recursion_limit", self._recursion_limit)
        asked = {mode for mode in run.stream_modes if mode != EventName.MESSAGES}
        state = StateMessages(run.run_id, told)
        stream = self._graph.astream(
            None if resumed else _input_of(run),
            config,
            context=run.context,
            # `messages` stays on for foreign models: those of ours tell their tokens through the sink. `updates` and
            # `values` are for messages that only the state has; they are encoded only when they were asked for.
            stream_mode=sorted({EventName.MESSAGES.value, EventName.UPDATES.value, EventName.VALUES.value, *asked}),
            subgraphs=run.stream_subgraphs,
            durability=durability,
        )
        async with aclosing(stream) as items:
            async for item in items:
                mode, data = item[-2], item[-1]
                if mode == EventName.MESSAGES:
                    message, metadata = data
                    kept = {key: metadata[key] for key in METADATA_KEYS if key in metadata}
                    yield MessagePiece(message, kept)
                    continue
                top_level = len(item) == 2 or not item[0]
                if mode == EventName.UPDATES and top_level:
                    state.updated(data)
                elif mode == EventName.VALUES and top_level:
                    for piece in state.untold(data):
                        yield piece
                if mode in asked:
                    yield StreamEvent(mode, json_bytes(data, json_default))

    async def after(self, before: Before) -> After:
        """Read the state that the graph left."""
        state = await self._graph.aget_state(self.thread_config)
        messages = _own_messages(state.values, before, self._run)
        outputs = [message.message_id for message in messages if message.role == "assistant"]
        interrupts = [{"id": i.id, "value": cleaned_value(i.value)} for i in state.interrupts]
        place = (state.config or {}).get("configurable", {})
        return After(
            messages=messages,
            output_message_id=outputs[-1] if outputs else None,
            checkpoint_id=place.get("checkpoint_id"),
            interrupts=interrupts,
            paused=bool(state.next),
        )

    async def keep_partial(
        self, partials: Sequence[tuple[TranscriptMessage, str]], after: After
    ) -> list[TranscriptMessage]:
        """Put cut-off messages (with the node that wrote each) and answers to cut-off calls into the checkpoint.

        Return the tool messages that were added, as the transcript has them. A graph without a `messages` channel is
        left as it is.
        """
        if "messages" not in self._graph.channels:
            return []
        added: list[TranscriptMessage] = []
        for partial, node in partials:
            await self._update([partial_ai_message(partial)], node)
        # The run's id too: providers repeat the ids of calls.
        answers = [
            ToolMessage(
                CANCELLED_CALL,
                tool_call_id=call["id"],
                name=call["name"],
                id=f"stopped-{self._run.run_id}-{call['id']}",
                status="error",
            )
            for call in unanswered_calls(after.messages)
        ]
        if answers:
            state = await self._graph.aget_state(self.thread_config)
            await self._update(answers, state.next[0] if state.next else "")
            added = [to_transcript(answer) for answer in answers]
        return added

    async def _update(self, messages: list[Any], node: str) -> None:
        as_node = node if node in self._graph.nodes else None
        await self._graph.aupdate_state(self.thread_config, {"messages": messages}, as_node=as_node)


def run_config(run: ClaimedRun, *, resumed: bool = True) -> dict[str, Any]:
    """Return the graph's config: the client's, under the platform's identity.

    `resumed` leaves the client's checkpoint out: the run goes on from the thread's latest.
    """
    given = run.config
    configurable = {
        **(given.get("configurable") or {}),
        "thread_id": str(run.thread_id),
        "checkpoint_ns": "",
        "run_id": str(run.run_id),
        "headrace_uid": run.uid,
    }
    if not resumed and run.checkpoint and run.checkpoint.get("checkpoint_id"):
        configurable["checkpoint_id"] = str(run.checkpoint["checkpoint_id"])
    config: dict[str, Any] = {
        "configurable": configurable,
        "metadata": {**run.metadata, "run_id": str(run.run_id), "thread_id": str(run.thread_id)},
    }
    for key in ("tags", "recursion_limit"):
        if given.get(key) is not None:
            config[key] = given[key]
    return config


def _input_of(run: ClaimedRun) -> Any:
    if run.command is not None:
        known = {key: run.command[key] for key in ("resume", "update", "goto") if run.command.get(key) is not None}
        return Command(**known)
    return run.input


async def read_before(saver: PatientSaver, run: ClaimedRun, others: Mapping[str, Any] | None) -> Before | None:
    """Read the thread's latest checkpoint.

    `others` are the messages that other runs wrote (claims.earlier_messages); without them None is returned when they
    are needed, which is when the latest checkpoint is this run's own.
    """
    place: Any = {"configurable": {"thread_id": str(run.thread_id), "checkpoint_ns": ""}}
    found = await saver.read_ahead(place)
    if found is None:
        return Before(resumed=False, known={}, known_count=0)
    messages = state_messages(found.checkpoint["channel_values"])
    if found.metadata.get("run_id") != str(run.run_id):
        said = {message.id: message for message in messages if message.id}
        return Before(resumed=False, known=said, known_count=len(messages))
    if others is None:
        return None
    # A later run's words under an id count, not the first's.
    known = {**others, **{named[1]: said for one, said in others.items() if (named := _REUSED.fullmatch(one))}}
    # Messages without ids have those of their places, which come before this run's.
    places = [int(one.rpartition("-")[2]) for one in others if _UNNAMED.fullmatch(one)]
    before = Before(resumed=True, known=known, known_count=max(places, default=-1) + 1)
    return replace(before, own=_own_messages(found.checkpoint["channel_values"], before, run))


def own_id(message_id: str, before: Before, run: ClaimedRun) -> str:
    """Return the transcript's id of a message of this run: one that an earlier run's has gets the run's number."""
    return f"{message_id}#{run.ordinal}" if message_id in before.known else message_id


def _own_messages(values: Any, before: Before, run: ClaimedRun) -> list[TranscriptMessage]:
    own = []
    for index, message in enumerate(state_messages(values)):
        # A message without an id is told apart by its place only.
        known = message.id in before.known if message.id else index < before.known_count
        if known and (not message.id or not _says_else(message, before.known[message.id])):
            continue
        told = to_transcript(message, own_id(message.id, before, run) if message.id else place_id(run.run_id, index))
        if told.role != "user":
            own.append(told)
    return own


def _says_else(message: BaseMessage, known: BaseMessage | Sequence[Any]) -> bool:
    """Say whether a message is a new one under the id of an old one, as graphs with constant ids make them."""
    if message is known:
        return False
    if isinstance(known, BaseMessage):
        calls = [one.tool_calls if isinstance(one, AIMessage) else [] for one in (message, known)]
        return message.content != known.content or calls[0] != calls[1]
    told = to_transcript(message)
    # Stored JSON has its keys in another order: compared as values.
    said: list[Any] = orjson.loads(json_bytes([told.content, told.tool_calls]))
    return said != list(known)


def cleaned_value(value: Any) -> Any:
    """Return an interrupt's value as plain JSON."""
    return cleaned(orjson.loads(json_bytes(value, json_default)))


@dataclass(frozen=True, slots=True)
class Delta:
    """What a chunk of a foreign model adds."""

    text: str
    reasoning: str
    calls: Sequence[Mapping[str, Any]]


def delta_of(message: BaseMessage) -> Delta | None:
    """Return what a chunk adds, or None for a complete message."""
    if not isinstance(message, AIMessageChunk):
        return None
    text, reasoning = text_and_reasoning(message.content, message.additional_kwargs)
    return Delta(text=text, reasoning=reasoning, calls=message.tool_call_chunks)


def complete_message(message: BaseMessage) -> tuple[TranscriptMessage, Mapping[str, Any]] | None:
    """Return a complete message for transcript and wire; None for what is neither the model's nor a tool's."""
    if not isinstance(message, AIMessage | ToolMessage) or not message.id:
        return None
    return to_transcript(message), wire_message(message)


def message_id(message: BaseMessage) -> str:
    """Return the message's id, clean."""
    return clean_text(message.id or "")
