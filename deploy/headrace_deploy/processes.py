"""Processes by identity, and files that only their owner reads: what starting and ending servers safely takes.

Invariant: a number is never trusted alone; a process is the one meant by its working directory or its start time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil


def process_in(pid: int, folder: Path) -> psutil.Process | None:
    """Return process `pid` if it is alive and works in `folder`, which identifies a server that we started."""
    try:
        process = psutil.Process(pid)
        return process if is_alive(process) and Path(process.cwd()) == folder.resolve() else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def is_alive(process: psutil.Process) -> bool:
    """Return whether the very process (not its number) still runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end_process(process: psutil.Process, number: int, seconds: float) -> None:
    """Send signal `number`, wait at most `seconds`, and kill what has not ended by then."""
    for attempt in (number, signal.SIGKILL):
        deadline = time.monotonic() + seconds
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(attempt)
        # Not psutil's wait: that waits for a zombie too, which PID 1 of a container may leave for seconds.
        while is_alive(process):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        else:
            return


def read_pid(path: Path) -> int | None:
    """Return the number in the first line of a pid file, None when there is none."""
    try:
        return int(path.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "(no log)"


def replace_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    try:
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
