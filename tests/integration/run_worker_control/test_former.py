"""What a dead control leaves behind is killed when it keeps the lock; nothing else ever is."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID, uuid4

from run_worker.adapters.lock import ControlLock

from tests.integration.run_worker_control.world import until

# A control that takes the lock and starts an executor which forks and ignores everything; both tell pids by files.
CONTROL = """
import asyncio, os, subprocess, sys
from pathlib import Path
from uuid import UUID
from run_worker.adapters.lock import ControlLock

EXECUTOR = (
    "import os, pathlib, sys, time; os.fork(); "
    "pathlib.Path(sys.argv[1], f'{os.getpid()}.pid').touch(); time.sleep(60)"
)
lock = ControlLock(Path(sys.argv[1]))
asyncio.run(lock.acquire(UUID(sys.argv[2]), asyncio.Event()))
env = {**os.environ, **({"HEADRACE_CONTROL_ID": sys.argv[2]} if sys.argv[3] == "marked" else {})}
subprocess.Popen([sys.executable, "-c", EXECUTOR, sys.argv[1]], env=env, pass_fds=[lock.fd])
sys.stdin.read()
"""


@asynccontextmanager
async def _control(
    folder: Path, control_id: UUID, *, marked: bool = True
) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[int]]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONTROL, str(folder), str(control_id), "marked" if marked else "foreign",
        stdin=asyncio.subprocess.PIPE,
    )  # fmt: skip
    pidfds: list[int] = []

    def told() -> list[int]:
        return [int(file.stem) for file in folder.glob("*.pid")]

    async def both() -> bool:
        return len(told()) == 2

    try:
        await until(both, seconds=30)
        pidfds += [os.pidfd_open(pid) for pid in told()]
        yield process, pidfds
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        for pidfd in pidfds:
            _kill(pidfd)


def _kill(pidfd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


async def _had(lock: ControlLock, control_id: UUID, *, seconds: float) -> tuple[bool, UUID | None]:
    """Acquire, or give up after `seconds`."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    return await lock.acquire(control_id, stop)


async def test_what_a_dead_control_left_is_killed(tmp_path: Path) -> None:
    """1. A control is killed; its executor, and a process that this forked, live on with the lock.
    2. The next control has the lock after its patience.
    """
    first = uuid4()
    async with _control(tmp_path, first) as (process, _):
        process.kill()
        await process.wait()
        lock = ControlLock(tmp_path, patience_seconds=0.3)
        assert await _had(lock, uuid4(), seconds=10) == (True, first)
        lock.close()


async def test_a_living_controls_executors_are_left_alone(tmp_path: Path) -> None:
    """1. A control lives, so do its executors.  2. Another one waits, longer than its patience, and kills nothing."""
    async with _control(tmp_path, uuid4()) as (_, pidfds):
        lock = ControlLock(tmp_path, patience_seconds=0.2)
        assert await _had(lock, uuid4(), seconds=1.0) == (False, None)
        for pidfd in pidfds:
            signal.pidfd_send_signal(pidfd, 0)  # raises when it is gone
        lock.close()


async def test_a_foreign_process_is_left_alone(tmp_path: Path) -> None:
    """1. A control is dead; processes without its mark hold the lock.  2. The next one waits and kills nothing."""
    async with _control(tmp_path, uuid4(), marked=False) as (process, pidfds):
        process.kill()
        await process.wait()
        lock = ControlLock(tmp_path, patience_seconds=0.2)
        assert await _had(lock, uuid4(), seconds=1.0) == (False, None)
        for pidfd in pidfds:
            signal.pidfd_send_signal(pidfd, 0)  # raises when it is gone
        lock.close()
