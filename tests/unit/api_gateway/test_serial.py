"""Messages as JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from api_gateway.domain import serial
from headrace.run.v1 import run_pb2
from headrace_kit.errors import InvalidArgument


def test_every_state_has_its_word() -> None:
    """
    1. Every run state of the proto is written.
    2. The words are those of the database, and the words that clients filter by lead back; a newer state is `unknown`.
    """
    words = [serial.run_state(number) for number in run_pb2.Run.State.values() if number]
    assert words == ["queued", "pending", "running", "completed", "failed", "cancelled", "interrupted"]
    assert [serial.run_state_number(word) for word in words] == [n for n in run_pb2.Run.State.values() if n]
    assert serial.run_state(99) == "unknown"
    with pytest.raises(InvalidArgument):
        serial.run_state_number("unspecified")


def test_times_always_have_six_digits() -> None:
    """
    1. Times without and with parts of a second, in UTC and elsewhere.
    2. They are written in UTC, with six digits and Z.
    """
    assert serial.time_text(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02T03:04:05.000000Z"
    elsewhere = datetime(2026, 1, 2, 3, 4, 5, 10, tzinfo=timezone(timedelta(hours=2)))
    assert serial.time_text(elsewhere) == "2026-01-02T01:04:05.000010Z"


@pytest.mark.parametrize(
    ("descriptor", "write"),
    [
        (run_pb2.Thread, serial.thread),
        (run_pb2.Message, serial.message),
        (run_pb2.Request, serial.request),
        (run_pb2.Run, serial.run),
        (run_pb2.Timing, serial.timing),
        (run_pb2.Agent, serial.agent),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_names_are_the_protos(descriptor: type, write: object) -> None:
    """
    1. An empty message of each kind is written.
    2. Its JSON has exactly the proto's fields, so that a field added there cannot be forgotten here.
    """
    assert callable(write)
    fields = descriptor.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]  # generated classes all have it
    written = write(descriptor())
    assert set(written) == set(fields)
    serial.dumps(written)
