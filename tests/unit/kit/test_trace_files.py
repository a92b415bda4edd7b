"""Trace files: one a process, and few of those that are gone."""

from __future__ import annotations

import os
from pathlib import Path

from headrace_kit.telemetry import LEFT_FILES_MAX, drop_old_files


def test_old_files_of_processes_that_are_gone_are_dropped(tmp_path: Path) -> None:
    """1. Thirty files of gone processes lie there, one of this process, and one of another service.
    2. The oldest of the gone ones go; all others stay.
    """
    kept = [f"run-worker-{os.getpid()}.jsonl", "event-relay-4194303.jsonl", "run-worker.jsonl"]
    gone = [f"run-worker-{2**22 + number}.jsonl" + (".1" if number % 2 else "") for number in range(30)]
    for place, name in enumerate([*kept, *gone]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (place, place))
    drop_old_files(tmp_path, service="run-worker")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, *gone[-LEFT_FILES_MAX:]}
