"""Rows of PostgreSQL as messages of `headrace.run.v1`, one function a message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson
from google.protobuf.timestamp_pb2 import Timestamp
from headrace.run.v1 import run_pb2 as pb

_TIMES = ("created_at", "started_at", "prepared_at", "first_output_at", "finished_at")
_LATENCIES = (
    "dispatch_latency_ms",
    "preparation_latency_ms",
    "model_first_output_latency_ms",
    "first_output_latency_ms",
    "total_latency_ms",
)


def thread(row: Mapping[str, Any]) -> pb.Thread:
    """Return a thread."""
    return pb.Thread(
        thread_id=str(row["thread_id"]),
        agent=row["agent"],
        title=row["title"],
        metadata=row["metadata"].encode(),
        state=pb.Thread.State.Value(f"STATE_{row['state'].upper()}"),
        active_run_id=_id(row["active_run_id"]),
        latest_run_id=_id(row["latest_run_id"]),
        created_at=_time(row["created_at"]),
        updated_at=_time(row["updated_at"]),
    )


def message(row: Mapping[str, Any]) -> pb.Message:
    """Return an entry of a transcript."""
    return pb.Message(
        message_id=row["message_id"],
        role=row["role"],
        content=row["content"].encode(),
        reasoning=row["reasoning"],
        tool_calls=row["tool_calls"].encode(),
        tool_call_id=row["tool_call_id"],
        name=row["name"],
        partial=row["partial"],
        run_id=str(row["run_id"]),
        request_id=str(row["request_id"]),
        created_at=_time(row["created_at"]),
    )


def request(row: Mapping[str, Any]) -> pb.Request:
    """Return a request, from a row of projections.REQUESTS."""
    return pb.Request(
        request_id=str(row["request_id"]),
        thread_id=str(row["thread_id"]),
        run_id=str(row["run_id"]),
        agent=row["agent"],
        state=pb.Request.State.Value(f"STATE_{row['state'].upper()}"),
        multitask_strategy=pb.MultitaskStrategy.Value(f"MULTITASK_STRATEGY_{row['multitask_strategy'].upper()}"),
        wait=_wait(row),
        created_at=_time(row["created_at"]),
        dispatched_at=_time(row["dispatched_at"]),
        trace_id=_trace_id(row["traceparent"]),
        metadata=row["metadata"].encode(),
    )


def run(row: Mapping[str, Any]) -> pb.Run:
    """Return a run, from a row of projections.RUNS."""
    return pb.Run(
        run_id=str(row["run_id"]),
        request_id=str(row["request_id"]),
        thread_id=str(row["thread_id"]),
        agent=row["agent"],
        state=pb.Run.State.Value(f"STATE_{row['state'].upper()}"),
        ordinal=row["ordinal"],
        attempt=row["attempt"],
        faults=row["faults"],
        wait=_wait(row),
        cancel_requested_at=_time(row["cancel_requested_at"]),
        timing=_timing(orjson.loads(row["timing"])),
        error=_error(row["error"]),
        output_message_id=row["output_message_id"] or "",
        usage=(row["usage"] or "{}").encode(),
        interrupts=(row["interrupts"] or "[]").encode(),
        runtime_cleanup_pending=row["runtime_cleanup_pending"],
        trace_id=_trace_id(row["traceparent"]),
        metadata=row["metadata"].encode(),
    )


def agent(row: Mapping[str, Any]) -> pb.Agent:
    """Return an agent."""
    return pb.Agent(
        name=row["name"],
        description=row["description"],
        input_schema=row["input_schema"].encode(),
        output_schema=row["output_schema"].encode(),
        digest=row["digest"],
        updated_at=_time(row["updated_at"]),
    )


def _timing(facts: Mapping[str, Any]) -> pb.Timing:
    """Return run_timing_json as a message: latencies are taken over, never computed here."""
    timing = pb.Timing(**{name: facts[name] for name in _LATENCIES if facts[name] is not None})
    for name in _TIMES:
        if facts[name] is not None:
            getattr(timing, name).FromJsonString(facts[name])
    return timing


def _error(text: str | None) -> pb.RunError | None:
    if text is None:
        return None
    error = orjson.loads(text)
    return pb.RunError(
        type=error.get("type", ""), message=error.get("message", ""), details=orjson.dumps(error.get("details", {}))
    )


def _wait(row: Mapping[str, Any]) -> pb.Wait | None:
    if row["wait_reason"] is None:
        return None
    return pb.Wait(
        wait_reason=row["wait_reason"],
        since=_time(row["wait_since"]),
        run_id=_id(row["wait_run_id"]),
        position=row["position"],
    )


def _id(value: object | None) -> str:
    return "" if value is None else str(value)


def _time(at: datetime | None) -> Timestamp | None:
    if at is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(at)
    return stamp


def _trace_id(traceparent: str) -> str:
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""
