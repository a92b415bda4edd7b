"""The lock that keeps one control a deployment: flock on a file in the run folder.

Invariant: executors inherit the open file, as exactly one descriptor (HEADRACE_LOCK_FD), so the lock is free only when
a former control and all its executors are gone. What they owned can then be reclaimed at once: the file names that
control, and its process. Executors that outlive their control are killed after a while (see `former`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
from headrace_kit.lifecycle import wait_or_stop

from run_worker.adapters.former import kill_holders, started_at

POLL_SECONDS: Final = 0.1
LOG_EVERY_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 15.0
"""Executors hand back and exit within about 10 s of their control's end; what lives longer hangs."""

log = structlog.get_logger("run_worker.lock")


class ControlLock:
    """The open lock file."""

    def __init__(self, folder: Path, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Open the file; nothing is locked yet. `patience_seconds` count while the former control is dead."""
        self._path = folder / "control.lock"
        self._patience_seconds = patience_seconds
        self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    async def acquire(self, control_id: UUID, stop: asyncio.Event) -> tuple[bool, UUID | None]:
        """Wait for the lock and put our name in the file.

        Returns whether it was had before `stop`, and which control had it before us.
        """
        waited = orphaned = 0.0
        while not self._try():
            if waited % LOG_EVERY_SECONDS < POLL_SECONDS:
                log.info(
                    "waiting for a former control's processes to exit", seconds=round(waited), file=str(self._path)
                )
            if await wait_or_stop(stop, POLL_SECONDS):
                return False, None
            waited += POLL_SECONDS
            former, lives = self._former()
            orphaned = 0.0 if lives else orphaned + POLL_SECONDS
            if former is not None and orphaned >= self._patience_seconds:
                killed = await asyncio.to_thread(kill_holders, self._path, control_id=former)
                log.error("killed what a former control left behind", control_id=str(former), pids=killed)
                orphaned = 0.0
        former, _ = self._former()
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{control_id} {os.getpid()} {started_at(os.getpid())}".encode(), 0)
        return True, former

    def close(self) -> None:
        """Close our copy; the lock goes when the last executor has closed its own."""
        os.close(self.fd)

    def _former(self) -> tuple[UUID | None, bool]:
        """Return the control that the file names, and whether its process may still live."""
        words = os.pread(self.fd, 128, 0).decode("ascii", "replace").split()
        try:
            former = UUID(words[0])
        except (IndexError, ValueError):
            return None, True
        if len(words) != 3 or not words[1].isdecimal():
            return former, True  # nothing is known of its process
        return former, started_at(int(words[1])) == words[2]

    def _try(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
