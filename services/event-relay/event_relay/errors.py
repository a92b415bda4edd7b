"""What the relay tells a caller, and the two inner facts that its parts tell each other."""

from __future__ import annotations

from headrace_contract.projection import EventName
from headrace_kit.errors import InvalidArgument, NotFound, OutOfRange, ResourceExhausted, Unavailable


class RedisAway(Exception):
    """Redis did not answer or refused; the same read may succeed later."""


def run_not_found(run_id: str) -> NotFound:
    """Return the one answer for runs that are unknown, foreign, malformed or deleted; `run_id` as it was asked for."""
    return NotFound(f"run {run_id[:64]!r} not found", reason="RUN_NOT_FOUND", metadata={"id": run_id[:64]})


def cursor_malformed(after: str) -> InvalidArgument:
    """Return the answer to a cursor that no event can have."""
    return InvalidArgument(
        f"after {after[:64]!r} is not the id of an event, <attempt>-<n> with both from 1",
        reason="CURSOR_MALFORMED",
        metadata={"after": after[:64]},
        field="after",
    )


def mode_unknown(mode: str) -> InvalidArgument:
    """Return the answer to a mode that is no event's name: it would filter everything away in silence."""
    known = ", ".join(EventName)
    return InvalidArgument(
        f"modes holds {mode[:64]!r}, which is not the name of an event; the names are {known}",
        reason="MODE_UNKNOWN",
        metadata={"mode": mode[:64], "known": known},
        field="modes",
    )


def stream_ended(after: str) -> OutOfRange:
    """Return the answer to a cursor at or behind `end`: nothing will ever follow it."""
    return OutOfRange(
        f"the run's events end at or before {after}", reason="STREAM_ENDED", metadata={"after": after}, field="after"
    )


def relay_stopping() -> Unavailable:
    """Return the answer that sends viewers to another relay, or to this one's successor, with their cursors."""
    return Unavailable("the relay is stopping; go on by cursor", reason="RELAY_STOPPING", retry_after_seconds=0.1)


def relay_not_ready() -> Unavailable:
    """Return the answer of a relay that has not yet seen a database it can read."""
    return Unavailable("the relay is not ready", reason="RELAY_NOT_READY", retry_after_seconds=1.0)


def store_away(name: str, seconds: float) -> Unavailable:
    """Return the answer after `name` was away for longer than a stream waits."""
    return Unavailable(
        f"{name} has been away for more than {seconds:.0f} s; go on by cursor",
        reason=f"{name.upper()}_UNAVAILABLE",
        metadata={"store": name},
        retry_after_seconds=1.0,
    )


def too_many_streams(limit: int) -> ResourceExhausted:
    """Return the answer of a replica that follows as much as it may."""
    return ResourceExhausted(
        f"this relay already has {limit} open streams",
        reason="STREAMS_PER_REPLICA",
        metadata={"limit": str(limit)},
        retry_after_seconds=1.0,
    )
