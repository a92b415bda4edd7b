"""Rows of PostgreSQL as messages of `headrace.run.v1`, one function a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import orjson
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from headrace.run.v1 import run_pb2 as pb

from run_worker.domain import sizes

_TIMES = ("created_at", "started_at", "prepared_at", "first_output_at", "finished_at")
_LATENCIES = (
    "dispatch_latency_ms",
    "preparation_latency_ms",
    "model_first_output_latency_ms",
    "first_output_latency_ms",
    "total_latency_ms",
)


_Item = TypeVar("_Item", bound=Message)


def page(
    convert: Callable[[Mapping[str, Any]], _Item], rows: Sequence[Mapping[str, Any]], *, size: int
) -> tuple[list[_Item], Mapping[str, Any] | None]:
    """Return the items of a page of `size` at most, and the row behind which the next page begins, if there is one.

    `rows` has one row more than `size` when there are more.
    """
    items = [convert(row) for row in rows[:size]]
    shown = items[: sizes.page_length(item.ByteSize() for item in items)]
    return shown, rows[len(shown) - 1] if len(rows) > len(shown) else None


def transcript_page(
    rows: Sequence[Mapping[str, Any]], named: Sequence[Mapping[str, Any]]
) -> tuple[list[pb.Message], list[pb.Run]]:
    """Return the messages of a page and the runs that these name, in their order: bounded together."""
    by_id = {row["run_id"]: run(row) for row in named}
    messages, run_sizes, met = [message(row) for row in rows], [], set[object]()
    for row in rows:
        run_id = row["run_id"]
        run_sizes.append(by_id[run_id].ByteSize() if run_id in by_id and run_id not in met else 0)
        met.add(run_id)
    shown = sizes.page_length(item.ByteSize() + size for item, size in zip(messages, run_sizes, strict=True))
    run_ids = dict.fromkeys(row["run_id"] for row in rows[:shown])
    return messages[:shown], [by_id[run_id] for run_id in run_ids if run_id in by_id]


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
    """Return an entry of a transcript; fields that would make it larger than VALUE_BYTES are cut (see `sizes`)."""
    content, reasoning, tool_calls = row["content"].encode(), row["reasoning"], row["tool_calls"].encode()
    if len(content) + len(reasoning.encode()) + len(tool_calls) > sizes.VALUE_BYTES:
        content = sizes.bounded_json(row["content"])
        reasoning = sizes.bounded_text(reasoning)
        tool_calls = _bounded_calls(row["tool_calls"])
    return pb.Message(
        message_id=row["message_id"],
        role=row["role"],
        content=content,
        reasoning=reasoning,
        tool_calls=tool_calls,
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
        usage=sizes.bounded_json(row["usage"] or "{}", limit=sizes.RUN_FIELD_BYTES),
        interrupts=sizes.bounded_json(row["interrupts"] or "[]", limit=sizes.RUN_FIELD_BYTES, listed=True),
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


def _bounded_calls(text: str) -> bytes:
    """Return tool calls with markers for large arguments; ids and names stay while they can."""
    calls = orjson.loads(text)
    for call in calls:
        size = len(orjson.dumps(call.get("args")))
        if size > sizes.FIELD_BYTES // max(1, len(calls)):
            call["args"] = sizes.marker(size)
    return sizes.bounded_json(orjson.dumps(calls).decode(), listed=True)


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
        type=error.get("type", ""),
        message=sizes.bounded_text(error.get("message", ""), limit=sizes.RUN_FIELD_BYTES),
        details=sizes.bounded_json(orjson.dumps(error.get("details", {})).decode(), limit=sizes.RUN_FIELD_BYTES),
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
