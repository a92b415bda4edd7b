"""Messages of run-worker as JSON. Names are the protos'; JSON that came as bytes is spliced in, not decoded.

Missing ids, times and objects are null. States are the enum's names in lower case, without their prefix.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import orjson
from google.protobuf.timestamp_pb2 import Timestamp
from headrace.run.v1 import run_pb2
from headrace_kit.errors import InvalidArgument

from api_gateway.domain.keys import ApiKey

Json = dict[str, Any]


def _names(enum: Any, prefix: str) -> dict[int, str]:
    return {number: name.removeprefix(prefix).lower() for name, number in enum.items() if number != 0}


_THREAD_STATES = _names(run_pb2.Thread.State, "STATE_")
_REQUEST_STATES = _names(run_pb2.Request.State, "STATE_")
_RUN_STATES = _names(run_pb2.Run.State, "STATE_")
_STRATEGIES = _names(run_pb2.MultitaskStrategy, "MULTITASK_STRATEGY_")
_RUN_STATE_NUMBERS = {name: number for number, name in _RUN_STATES.items()}
_STRATEGY_NUMBERS = {name: run_pb2.MultitaskStrategy.ValueType(number) for number, name in _STRATEGIES.items()}

TIMES = ("created_at", "started_at", "prepared_at", "first_output_at", "finished_at")
LATENCIES = (
    "dispatch_latency_ms",
    "preparation_latency_ms",
    "model_first_output_latency_ms",
    "first_output_latency_ms",
    "total_latency_ms",
)


def dumps(value: Any) -> bytes:
    """Return a value as JSON.

    Raises InvalidArgument for what JSON cannot carry on: nesting over 254 levels, integers over 64 bits.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise InvalidArgument(f"the JSON cannot be carried on: {error}", reason="BODY_INVALID") from None


def spliced(raw: bytes, default: bytes) -> orjson.Fragment:
    """Return JSON bytes as a part of a larger document."""
    return orjson.Fragment(raw or default)


def time_text(moment: datetime) -> str:
    """Return a UTC time as the product writes it, always with six digits of a second."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _time(message: Any, field: str) -> str | None:
    if not message.HasField(field):
        return None
    stamp: Timestamp = getattr(message, field)
    return time_text(datetime.fromtimestamp(stamp.seconds, UTC).replace(microsecond=stamp.nanos // 1000))


def run_state(number: int) -> str:
    """Return a run state's word; `unknown` for one that this release does not know."""
    return _RUN_STATES.get(number, "unknown")


def request_state(number: int) -> str:
    """Return a request state's word; `unknown` for one that this release does not know."""
    return _REQUEST_STATES.get(number, "unknown")


def run_state_number(word: str) -> int:
    """Return the enum's number of a state's word.

    Raises InvalidArgument for another word.
    """
    try:
        return _RUN_STATE_NUMBERS[word]
    except KeyError:
        known = ", ".join(_RUN_STATE_NUMBERS)
        raise InvalidArgument(
            f"state {word[:64]!r} is none of {known}", reason="STATE_UNKNOWN", field="state"
        ) from None


def strategy_number(word: str) -> run_pb2.MultitaskStrategy.ValueType:
    """Return the enum's number of a multitask strategy's word, 0 for none."""
    return _STRATEGY_NUMBERS.get(word, run_pb2.MULTITASK_STRATEGY_UNSPECIFIED)


def thread(message: run_pb2.Thread) -> Json:
    """Return a thread."""
    return {
        "thread_id": message.thread_id,
        "agent": message.agent,
        "title": message.title,
        "metadata": spliced(message.metadata, b"{}"),
        "state": _THREAD_STATES.get(message.state, "unknown"),
        "active_run_id": message.active_run_id or None,
        "latest_run_id": message.latest_run_id or None,
        "created_at": _time(message, "created_at"),
        "updated_at": _time(message, "updated_at"),
    }


def message(item: run_pb2.Message) -> Json:
    """Return a message: the shape of `snapshot` events, and where and when it was written."""
    return {
        "message_id": item.message_id,
        "role": item.role,
        "content": spliced(item.content, b'""'),
        "reasoning": item.reasoning,
        "tool_calls": spliced(item.tool_calls, b"[]"),
        "tool_call_id": item.tool_call_id,
        "name": item.name,
        "partial": item.partial,
        "run_id": item.run_id or None,
        "request_id": item.request_id or None,
        "created_at": _time(item, "created_at"),
    }


def _wait(owner: Any) -> Json | None:
    if not owner.HasField("wait"):
        return None
    wait = owner.wait
    return {
        "wait_reason": wait.wait_reason,
        "since": _time(wait, "since"),
        "run_id": wait.run_id or None,
        "position": wait.position,
    }


def request(item: run_pb2.Request) -> Json:
    """Return a request."""
    return {
        "request_id": item.request_id,
        "thread_id": item.thread_id,
        "run_id": item.run_id,
        "agent": item.agent,
        "state": request_state(item.state),
        "multitask_strategy": _STRATEGIES.get(item.multitask_strategy, "enqueue"),
        "wait": _wait(item),
        "created_at": _time(item, "created_at"),
        "dispatched_at": _time(item, "dispatched_at"),
        "trace_id": item.trace_id or None,
        "metadata": spliced(item.metadata, b"{}"),
    }


def timing(item: run_pb2.Timing) -> Json:
    """Return the five times and the five latencies; the latencies are run-worker's, never computed here."""
    result: Json = {name: _time(item, name) for name in TIMES}
    result.update({name: getattr(item, name) if item.HasField(name) else None for name in LATENCIES})  # type: ignore[arg-type]  # the names are the proto's own
    return result


def run(item: run_pb2.Run) -> Json:
    """Return a run."""
    error = None
    if item.HasField("error"):
        error = {
            "type": item.error.type,
            "message": item.error.message,
            "details": spliced(item.error.details, b"{}"),
        }
    return {
        "run_id": item.run_id,
        "request_id": item.request_id,
        "thread_id": item.thread_id,
        "agent": item.agent,
        "state": run_state(item.state),
        "ordinal": item.ordinal,
        "attempt": item.attempt,
        "faults": item.faults,
        "wait": _wait(item),
        "cancel_requested_at": _time(item, "cancel_requested_at"),
        "timing": timing(item.timing),
        "error": error,
        "output_message_id": item.output_message_id or None,
        "usage": spliced(item.usage, b"{}"),
        "interrupts": spliced(item.interrupts, b"[]"),
        "runtime_cleanup_pending": item.runtime_cleanup_pending,
        "trace_id": item.trace_id or None,
        "metadata": spliced(item.metadata, b"{}"),
    }


def agent(item: run_pb2.Agent) -> Json:
    """Return an agent."""
    return {
        "name": item.name,
        "description": item.description,
        "input_schema": spliced(item.input_schema, b"{}"),
        "output_schema": spliced(item.output_schema, b"{}"),
        "digest": item.digest,
        "updated_at": _time(item, "updated_at"),
    }


def api_key(item: ApiKey) -> Json:
    """Return a key's row; the key itself is not in it."""
    return {
        "key_id": item.key_id,
        "uid": item.uid,
        "scopes": list(item.scopes),
        "label": item.label,
        "created_at": time_text(item.created_at),
        "expires_at": time_text(item.expires_at) if item.expires_at else None,
        "revoked_at": time_text(item.revoked_at) if item.revoked_at else None,
    }


def page(name: str, items: Iterable[Json], next_page_token: str) -> Json:
    """Return a page of a list."""
    return {name: list(items), "next_page_token": next_page_token or None}
