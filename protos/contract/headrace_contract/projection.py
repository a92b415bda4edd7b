"""The projection of runs in Redis: keys, fields, event names and event ids. Written by run-worker, read by event-relay.

Invariant: the stream entry id is `<attempt>-<n>` and n counts 1, 2, 3, ... without holes inside an attempt, so that
Redis itself refuses a doubled append and a write by a fenced-off attempt.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FIELD_EVENT: Final = b"e"
"""Stream field: the event's name."""
FIELD_DATA: Final = b"d"
"""Stream field: the event's JSON, as its producer encoded it."""

MAX_ATTEMPT: Final = 2**31 - 1
"""`runs.attempt` is a PostgreSQL integer; a larger one in a cursor is malformed."""
MAX_N: Final = 2**63 - 1
"""Redis takes 64 bits on each side of the dash; the sign bit is left alone."""


class EventName(StrEnum):
    """Every event that a run's stream can hold, and those that only the relay makes (queue, reset)."""

    METADATA = "metadata"
    MESSAGES = "messages"
    UPDATES = "updates"
    VALUES = "values"
    CUSTOM = "custom"
    TASKS = "tasks"
    TOOL = "tool"
    SANDBOX = "sandbox"
    INTERRUPT = "interrupt"
    QUEUE = "queue"
    SNAPSHOT = "snapshot"
    RESULT = "result"
    END = "end"
    RESET = "reset"


ALWAYS_SENT: Final = frozenset(
    {EventName.METADATA, EventName.QUEUE, EventName.SNAPSHOT, EventName.RESULT, EventName.END, EventName.RESET}
)
"""Events that a viewer's choice of modes never filters out."""


class ResetReason(StrEnum):
    """Why continuity could not be promised."""

    GAP = "gap"
    TRIMMED = "trimmed"
    UNKNOWN_CURSOR = "unknown_cursor"
    LOST = "lost"


_EVENT_ID = re.compile(r"([0-9]{1,10})-([0-9]{1,19})")


@dataclass(frozen=True, order=True, slots=True)
class EventId:
    """Place of an event in its run: attempt (from 1), then n (from 1). Compares numerically."""

    attempt: int
    n: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.n}"

    @classmethod
    def parse(cls, text: str | bytes) -> EventId:
        """Parse `<attempt>-<n>`.

        Raises ValueError on anything else, also on numbers that no run can have.
        """
        if isinstance(text, bytes):
            text = text.decode("ascii", "replace")
        match = _EVENT_ID.fullmatch(text)
        if match is None:
            raise ValueError(f"event id {text[:64]!r} is not <attempt>-<n>")
        attempt, n = int(match[1]), int(match[2])
        if attempt > MAX_ATTEMPT or n > MAX_N:
            raise ValueError(f"event id {text!r} is out of range")
        return cls(attempt, n)


def shard_of(run_id: str, shards: int) -> int:
    """Return the shard of a run: crc32 of its canonical text, modulo `shards`."""
    return zlib.crc32(run_id.encode()) % shards


def events_key(run_id: str, shards: int = 1) -> str:
    """Return the key of a run's stream; the braces keep a shard's keys on one cluster node."""
    return f"headrace:{{s{shard_of(run_id, shards)}}}:{run_id}:events"


def cancel_key(run_id: str, shards: int = 1) -> str:
    """Return the key that hints at a committed cancel."""
    return f"headrace:{{s{shard_of(run_id, shards)}}}:{run_id}:cancel"
