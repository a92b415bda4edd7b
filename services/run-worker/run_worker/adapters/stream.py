"""Appends to the projection: every run's batch in one call, and the end of a run that has no live owner.

Invariant: an entry's id is `<attempt>-<n>` as its writer chose it, so Redis itself refuses a doubled append and a write
by a fenced-off attempt; only an attempt's first entry, or a snapshot after a loss, may create the stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from headrace_contract.projection import FIELD_DATA, FIELD_EVENT, EventId, EventName, cancel_key, events_key, shard_of
from headrace_kit.redis import AWAY_ERRORS
from redis.exceptions import NoScriptError

from run_worker.adapters.ends import Ended
from run_worker.domain.encoding import json_bytes
from run_worker.domain.transcript import TranscriptMessage

_NOT_GREATER: Final = "equal or smaller"
"""Redis' words for an id that is not above the stream's last one."""


CALL_MAX_BYTES: Final = 4 * 1024 * 1024
"""Data of one call of the script: some milliseconds of Redis."""

# All runs' batches in one command: packing and answering a pipeline's commands one by one costs the client several
# times what Redis needs (measured: 20 us an entry against 8). Per batch: may create, TTL, trim, count, then id, event,
# data of each entry. The first entry that is refused ends its batch; the answers are the values of Appended.
APPEND: Final = """
local at, answers = 1, {}
for i, key in ipairs(KEYS) do
  local create, ttl, trim, count = ARGV[at] == '1', ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local outcome = 0
  at = at + 4
  for j = 1, count do
    if outcome == 0 then
      local reply
      if create and j == 1 then
        reply = redis.pcall('XADD', key, ARGV[at], 'e', ARGV[at + 1], 'd', ARGV[at + 2])
      else
        reply = redis.pcall('XADD', key, 'NOMKSTREAM', ARGV[at], 'e', ARGV[at + 1], 'd', ARGV[at + 2])
      end
      if not reply then
        outcome = 1
      elseif type(reply) == 'table' and reply.err then
        outcome = string.find(reply.err, 'equal or smaller', 1, true) and 2 or 3
      end
    end
    at = at + 3
  end
  if outcome == 0 and ttl ~= '' then redis.pcall('EXPIRE', key, ttl) end
  if outcome == 0 and trim ~= '' then redis.pcall('XTRIM', key, 'MINID', '=', trim) end
  answers[i] = outcome
end
return answers
"""
_APPEND_SHA: Final = hashlib.sha1(APPEND.encode(), usedforsecurity=False).hexdigest()


class Entry(NamedTuple):
    """One numbered event, encoded. A tuple: one is made per event, and it costs a third of a frozen dataclass."""

    n: int
    event: str
    data: bytes


class Batch(NamedTuple):
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

    OK = 0
    LOST = 1
    """The stream is gone: nothing was appended."""
    NOT_GREATER = 2
    """The stream holds an id that is not below ours: a retry, or a newer attempt."""
    AWAY = 3
    """Redis refused or is away: unknown what was appended."""


class ProjectionWriter:
    """The projection of all runs of one process."""

    def __init__(self, redis: Any, *, shards: int, ttl_seconds: int) -> None:
        """Use `redis`, a redis.asyncio client that returns bytes."""
        self._redis = redis
        self._shards = shards
        self._ttl_seconds = ttl_seconds

    async def append(self, batches: Sequence[Batch]) -> list[Appended]:
        """Append all batches, one call a shard; one answer a batch, in order. Never raises for Redis' state."""
        answers = [Appended.AWAY] * len(batches)
        for places in self._calls(batches):
            try:
                outcomes = await self._append([batches[place] for place in places])
            except AWAY_ERRORS:
                continue
            for place, outcome in zip(places, outcomes, strict=True):
                answers[place] = Appended(outcome)
        return answers

    def _calls(self, batches: Sequence[Batch]) -> list[list[int]]:
        """Split by shard, whose keys share a node, and by size, so that no call keeps Redis from others for long."""
        calls: list[list[int]] = []
        current: dict[int, tuple[list[int], int]] = {}
        for place, batch in enumerate(batches):
            shard = shard_of(batch.run_id, self._shards)
            size = sum(len(entry.data) for entry in batch.entries)
            places, so_far = current.get(shard, ([], 0))
            if not places or so_far + size > CALL_MAX_BYTES:
                places, so_far = [], 0
                calls.append(places)
            places.append(place)
            current[shard] = (places, so_far + size)
        return calls

    async def _append(self, batches: Sequence[Batch]) -> list[int]:
        args: list[Any] = [len(batches)]
        args += [events_key(batch.run_id, self._shards) for batch in batches]
        for batch in batches:
            trim = b"" if batch.trim_below is None else f"{batch.attempt}-{batch.trim_below}"
            ttl = self._ttl_seconds if batch.renew_ttl else b""
            args += (b"1" if batch.may_create else b"", ttl, trim, len(batch.entries))
            for entry in batch.entries:
                args += (f"{batch.attempt}-{entry.n}", entry.event, entry.data)
        try:
            outcomes = await self._redis.execute_command("EVALSHA", _APPEND_SHA, *args)
        except NoScriptError:
            outcomes = await self._redis.execute_command("EVAL", APPEND, *args)
        return list(outcomes)

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


def metadata_event(
    *,
    run_id: str,
    thread_id: str,
    request_id: str,
    attempt: int,
    agent: str,
    previous: Mapping[str, str] | None = None,
) -> bytes:
    """Return the data of the first event of an attempt; `previous` says how the attempt before ended, and why."""
    told = {"run_id": run_id, "thread_id": thread_id, "request_id": request_id, "attempt": attempt, "agent": agent}
    return json_bytes(told if previous is None else {**told, "previous": previous})


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
