"""The errors of RunService that are its own: their reasons are part of the API."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from headrace_kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted

RETRY_PENDING_SECONDS = 5.0
"""Retry-After of a full queue: about the time in which a text run makes room."""


def not_found(kind: str, object_id: UUID | str) -> NotFound:
    """Return what a missing object and another user's object are told with alike: `kind` is thread, request or run."""
    text = str(object_id)
    return NotFound(f"{kind} {text!r} not found", reason=f"{kind.upper()}_NOT_FOUND", metadata={"id": text})


def key_reused(key: str) -> AlreadyExists:
    """The idempotency key came before, with another body."""
    return AlreadyExists(
        "the idempotency key was used with another body",
        reason="IDEMPOTENCY_KEY_REUSED",
        metadata={"idempotency_key": key},
    )


def thread_exists(thread_id: UUID) -> AlreadyExists:
    """The id that the client chose for its thread is taken."""
    return AlreadyExists(
        f"thread {str(thread_id)!r} exists", reason="THREAD_EXISTS", metadata={"thread_id": str(thread_id)}
    )


def thread_deleted(thread_id: UUID) -> AlreadyExists:
    """The idempotency key made something in a thread that has been deleted since."""
    return AlreadyExists(
        f"the idempotency key was used for thread {str(thread_id)!r}, which has been deleted",
        reason="THREAD_DELETED",
        metadata={"thread_id": str(thread_id)},
    )


def agent_unknown(agent: str, known: Sequence[str]) -> InvalidArgument:
    """No live executor has loaded an agent of that name; `known` are those that are loaded."""
    return InvalidArgument(
        f"agent {agent[:64]!r} is not known; known are: {_names(known)}",
        reason="AGENT_NOT_FOUND",
        field="agent",
        metadata={"agent": agent[:64], "known": _names(known)},
    )


def agent_not_loaded(agent: str, known: Sequence[str]) -> FailedPrecondition:
    """The thread's agent was there when the thread was made, and no live executor has it now."""
    return FailedPrecondition(
        f"the thread's agent {agent!r} is not loaded any more; loaded are: {_names(known)}",
        reason="AGENT_NOT_LOADED",
        metadata={"agent": agent, "known": _names(known)},
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def thread_interrupted(thread_id: UUID) -> FailedPrecondition:
    """The thread waits for an answer to its questions."""
    return FailedPrecondition(
        "the thread waits for an answer to its interrupt, and answering comes with a later release: until then it takes"
        " no message; delete the thread, or go on in a new one",
        reason="THREAD_INTERRUPTED",
        metadata={"thread_id": str(thread_id)},
    )


def thread_busy(thread_id: UUID) -> FailedPrecondition:
    """The thread has an active run or a queue, and the call asked not to wait."""
    return FailedPrecondition(
        "the thread has an active run or queued requests", reason="THREAD_BUSY", metadata={"thread_id": str(thread_id)}
    )


def thread_not_paused(thread_id: UUID, state: str) -> FailedPrecondition:
    """Only a paused thread can be continued."""
    return FailedPrecondition(
        f"the thread is {state}, not paused",
        reason="THREAD_NOT_PAUSED",
        metadata={"thread_id": str(thread_id), "state": state},
    )


def queue_empty(thread_id: UUID) -> FailedPrecondition:
    """There is nothing to continue with; a new message starts at once."""
    return FailedPrecondition(
        "no request is queued; send a message instead", reason="QUEUE_EMPTY", metadata={"thread_id": str(thread_id)}
    )


def request_dispatched(request_id: UUID, run_id: UUID) -> FailedPrecondition:
    """The request became a run: cancel that."""
    return FailedPrecondition(
        f"the request is run {run_id} by now; cancel the run",
        reason="REQUEST_DISPATCHED",
        metadata={"request_id": str(request_id), "run_id": str(run_id)},
    )


def strategy_unsupported(strategy: str) -> InvalidArgument:
    """The strategy is not in the contract, or in it and not built yet."""
    return InvalidArgument(
        f"multitask_strategy {strategy} is not supported; use enqueue or reject",
        reason="STRATEGY_UNSUPPORTED",
        field="multitask_strategy",
        metadata={"multitask_strategy": strategy, "known": "enqueue, reject"},
    )


def pending_limit(*, scope: str, limit: int) -> ResourceExhausted:
    """Too much waits already; `scope` is user or total."""
    return ResourceExhausted(
        f"{limit} requests wait already ({scope})",
        reason="PENDING_LIMIT",
        metadata={"scope": scope, "limit": str(limit)},
        retry_after_seconds=RETRY_PENDING_SECONDS,
    )
