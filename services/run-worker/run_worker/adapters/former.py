"""The processes of a control that is gone: found by what only they have, and killed when they keep its lock.

Invariant: never a foreign process. A victim holds the lock's very file open and was exec'ed with the former control's
id in its environment (its executors, and what their graphs forked); a pidfd pins it before that is looked at.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

PROC: Final = Path("/proc")
MARK: Final = "HEADRACE_CONTROL_ID"
"""Variable by which an executor knows its control."""
_START_FIELD: Final = 19
"""Of /proc/<pid>/stat behind the command's name: when the process started, in ticks since boot."""

log = structlog.get_logger("run_worker.former")


def started_at(pid: int) -> str:
    """Return what tells a process from a later one with the same pid; empty when there is none, or no /proc."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[_START_FIELD]


def kill_holders(file: Path, *, control_id: UUID) -> list[int]:
    """SIGKILL every process of `control_id` that holds `file` open; return their pids."""
    killed = []
    for pid in _own_pids():
        try:
            pinned = os.pidfd_open(pid)
        except OSError:
            continue  # gone meanwhile
        try:
            if _marked(pid, control_id) and _holds(pid, file):
                signal.pidfd_send_signal(pinned, signal.SIGKILL)
                killed.append(pid)
        except OSError as error:
            log.debug("process not looked at", pid=pid, error=type(error).__name__)
        finally:
            os.close(pinned)
    return killed


def _own_pids() -> Iterator[int]:
    """Yield the pids of this user's other processes; none where there is no /proc."""
    if not PROC.is_dir():
        return
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                mine = entry.stat().st_uid == os.getuid()
            except OSError:
                continue  # gone meanwhile
            if mine:
                yield int(entry.name)


def _marked(pid: int, control_id: UUID) -> bool:
    return f"{MARK}={control_id}".encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")


def _holds(pid: int, file: Path) -> bool:
    wanted = file.stat()
    for link in (PROC / str(pid) / "fd").iterdir():
        try:
            there = link.stat()
        except OSError:
            continue  # closed meanwhile
        if (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False
