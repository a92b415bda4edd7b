"""The lock that keeps one control a deployment: flock on a file in the run folder.

Invariant: executors inherit the open file, so the lock is free only when a former control and all its executors are
gone. What they owned can then be reclaimed at once: the file names that control.
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

POLL_SECONDS: Final = 0.1
LOG_EVERY_SECONDS: Final = 5.0

log = structlog.get_logger("run_worker.lock")


class ControlLock:
    """The open lock file."""

    def __init__(self, folder: Path) -> None:
        """Open the file; nothing is locked yet."""
        self._path = folder / "control.lock"
        self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    async def acquire(self, control_id: UUID, stop: asyncio.Event) -> tuple[bool, UUID | None]:
        """Wait for the lock and put our name in the file.

        Returns whether it was had before `stop`, and which control had it before us.
        """
        waited = 0.0
        while not self._try():
            if waited % LOG_EVERY_SECONDS < POLL_SECONDS:
                log.info(
                    "waiting for a former control's processes to exit", seconds=round(waited), file=str(self._path)
                )
            if await wait_or_stop(stop, POLL_SECONDS):
                return False, None
            waited += POLL_SECONDS
        former = os.pread(self.fd, 64, 0).decode("ascii", "replace").strip()
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, str(control_id).encode(), 0)
        try:
            return True, UUID(former)
        except ValueError:
            return True, None

    def close(self) -> None:
        """Close our copy; the lock goes when the last executor has closed its own."""
        os.close(self.fd)

    def _try(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
