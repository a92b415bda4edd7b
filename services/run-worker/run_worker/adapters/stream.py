"""Appends to the projection: every run's batch in one pipeline, and the end of a run that has no live owner.

Invariant: an entry's id is `<attempt>-<n>` as its writer chose it, so Redis itself refuses a doubled append and a write
by a fenced-off attempt; only an attempt's first entry, or a snapshot after a loss, may create the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from headrace_contract.projection import FIELD_DATA, FIELD_EVENT, EventId, EventName, cancel_key, events_key
from headrace_kit.redis import AWAY_ERRORS
from redis.exceptions import ResponseError

from run_worker.adapters.ends import Ended
from run_worker.domain.encoding import json_bytes
from run_worker.domain.transcript import TranscriptMessage

_NOT_GREATER: Final = "equal or smaller"
"""Redis' words for an id that is not above the stream's last one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One numbered event, encoded."""

    n: int
    event: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """What one run appends in this pipeline."""

    run_id: str
    attempt: int
    entries: Sequence[Entry]
    may_create: bool
    """The first entry begins the stream, or begins it again after a loss."""
    renew_ttl: bool
    trim_below: int | None = None
    """Drop everything before this attempt's entry n, which is a snapshot."""


class Appended(Enum):
    """What became of a batch."""

    OK = "ok"
    LOST = "lost"
    """The stream is gone: nothing was appended."""
    NOT_GREATER = "not_greater"
    """The stream holds an id that is not below ours: a retry, or a newer attempt."""
    AWAY = "away"
    """Redis refused or is away: unknown what was appended."""


class ProjectionWriter:
    """The projection of all runs of one process."""

    def __init__(self, redis: Any, *, shards: int, ttl_seconds: int) -> None:
        """Use `redis`, a redis.asyncio client that returns bytes."""
        self._redis = redis
        self._shards = shards
        self._ttl_seconds = ttl_seconds

    async def append(self, batches: Sequence[Batch]) -> list[Appended]:
        """Append all batches in one round trip; one answer a batch, in order. Never raises for Redis' state."""
        pipeline = self._redis.pipeline(transaction=False)
        counts: list[int] = []
        for batch in batches:
            key = events_key(batch.run_id, self._shards)
            create = batch.may_create
            for entry in batch.entries:
                place = f"{batch.attempt}-{entry.n}"
                if create:
                    pipeline.execute_command("XADD", key, place, FIELD_EVENT, entry.event, FIELD_DATA, entry.data)
                else:
                    pipeline.execute_command(
                        "XADD", key, "NOMKSTREAM", place, FIELD_EVENT, entry.event, FIELD_DATA, entry.data
                    )
                create = False
            counts.append(len(batch.entries))
            if batch.renew_ttl:
                pipeline.execute_command("EXPIRE", key, self._ttl_seconds)
            if batch.trim_below is not None:
                pipeline.execute_command("XTRIM", key, "MINID", "=", f"{batch.attempt}-{batch.trim_below}")
        try:
            replies = await pipeline.execute(raise_on_error=False)
        except AWAY_ERRORS:
            return [Appended.AWAY] * len(batches)
        return list(self._judge(batches, counts, replies))

    @staticmethod
    def _judge(batches: Sequence[Batch], counts: Sequence[int], replies: Sequence[Any]) -> list[Appended]:
        at, answers = 0, []
        for batch, count in zip(batches, counts, strict=True):
            answers.append(_outcome(replies[at : at + count]))
            at += count + batch.renew_ttl + (batch.trim_below is not None)
        return answers

    async def last_ids(self, run_ids: Sequence[str]) -> list[EventId | None]:
        """Return each stream's last id, None where there is no stream.

        Raises one of AWAY_ERRORS when Redis is away.
        """
        pipeline = self._redis.pipeline(transaction=False)
        for run_id in run_ids:
            pipeline.execute_command("XREVRANGE", events_key(run_id, self._shards), "+", "-", "COUNT", 1)
        replies = await pipeline.execute(raise_on_error=True)
        return [EventId.parse(reply[0][0]) if reply else None for reply in replies]

    async def cancel_keys(self, run_ids: Sequence[str]) -> list[str]:
        """Return those runs whose cancel key is set: a hint, never a cancel.

        Raises one of AWAY_ERRORS when Redis is away.
        """
        values = await self._redis.mget([cancel_key(run_id, self._shards) for run_id in run_ids])
        return [run_id for run_id, value in zip(run_ids, values, strict=True) if value is not None]


def _outcome(replies: Sequence[Any]) -> Appended:
    if any(reply is None for reply in replies):
        return Appended.LOST
    errors = [reply for reply in replies if isinstance(reply, Exception)]
    if not errors:
        return Appended.OK
    if all(isinstance(error, ResponseError) and _NOT_GREATER in str(error) for error in errors):
        return Appended.NOT_GREATER
    return Appended.AWAY


def metadata_event(*, run_id: str, thread_id: str, request_id: str, attempt: int, agent: str) -> bytes:
    """Return the data of the first event of an attempt."""
    return json_bytes(
        {"run_id": run_id, "thread_id": thread_id, "request_id": request_id, "attempt": attempt, "agent": agent}
    )


def end_event(status: str) -> bytes:
    """Return the data of the last event of a run."""
    return json_bytes({"status": status})


async def publish_unowned_end(
    redis: Any, ended: Ended, *, snapshot_messages: Sequence[TranscriptMessage], shards: int, ttl_seconds: int
) -> None:
    """Append metadata, snapshot, result and, without a fence, end, under the attempt that control's end made.

    Repeating it is harmless. Raises one of headrace_kit.redis.AWAY_ERRORS when Redis is away; the relay then tells the
    same end with the same ids.
    """
    result_n = EventId.parse(ended.result_event_id).n
    snapshot = {"messages": [message.as_json() for message in snapshot_messages], "tool_calls": [], "interrupts": []}
    entries = [
        Entry(
            result_n - 2,
            EventName.METADATA,
            metadata_event(
                run_id=str(ended.run_id),
                thread_id=str(ended.thread_id),
                request_id=str(ended.request_id),
                attempt=ended.attempt,
                agent=ended.agent,
            ),
        ),
        Entry(result_n - 1, EventName.SNAPSHOT, json_bytes(snapshot)),
        Entry(result_n, EventName.RESULT, ended.result),
    ]
    if not ended.fenced:
        entries.append(Entry(result_n + 1, EventName.END, end_event(ended.state)))
    key = events_key(str(ended.run_id), shards)
    pipeline = redis.pipeline(transaction=False)
    for entry in entries:
        pipeline.execute_command(
            "XADD", key, f"{ended.attempt}-{entry.n}", FIELD_EVENT, entry.event, FIELD_DATA, entry.data
        )
    pipeline.execute_command("EXPIRE", key, ttl_seconds)
    for reply in await pipeline.execute(raise_on_error=False):
        if isinstance(reply, Exception) and _NOT_GREATER not in str(reply):
            raise reply
