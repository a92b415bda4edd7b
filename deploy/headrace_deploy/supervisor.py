"""Keeps the services running: a process of its own that starts them all at once and restarts what dies, bounded.

States of a service:

    starting ──▶ running ──(dies)──▶ backing_off ──▶ starting
                    │                     └─(more than 10 deaths in 60 s)──▶ failed, the others stay
                    └──(SIGTERM to the supervisor, its stage)──▶ stopped

Invariants: one supervisor per run folder (a file lock); a service never outlives it (PR_SET_PDEATHSIG); while it lives,
only it writes the state file.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import structlog
from headrace_kit import lifecycle, logs

from headrace_deploy.roles import find_budget
from headrace_deploy.services import STOP_STAGE_SECONDS, ServiceSpec, environment, specs_for
from headrace_deploy.state import ProcessRef, ServiceState, ServiceStatus, State, require_state

LOG_ROTATE_BYTES = 64 * 1024 * 1024
"""A log is renamed to `.1` at this size when its service starts: at most two of them each."""
LOCK_NAME = "supervisor.lock"

_PR_SET_PDEATHSIG = 1

log = structlog.get_logger("headrace.supervisor")


@dataclass(frozen=True, slots=True)
class Pace:
    """How a dead service comes back, when it is given up, and how long its end may take."""

    first_back_off_seconds: float = 0.2
    last_back_off_seconds: float = 5.0
    calm_seconds: float = 30.0
    """A service that lived this long starts its back-off from the beginning."""
    max_deaths: int = 10
    window_seconds: float = 60.0
    """More than `max_deaths` within it: something that a restart does not repair."""
    stop_seconds: float = STOP_STAGE_SECONDS[0]
    """From SIGTERM to SIGKILL."""


class Supervised:
    """One service: started, watched, restarted, ended."""

    def __init__(
        self, spec: ServiceSpec, *, state: State, run_dir: Path, budget_path: Path, pace: Pace | None = None
    ) -> None:
        self._spec = spec
        self._state = state
        self._run_dir = run_dir
        self._address = state.services[spec.name].address
        self._environment = environment(
            spec, state=state, run_dir=run_dir, budget_path=budget_path, inherited=os.environ
        )
        self._pace = pace or Pace()
        self._deaths: deque[float] = deque(maxlen=self._pace.max_deaths + 1)
        self._restarts = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the service running until `stop`, then end it; returns early when it is given up."""
        pace = self._pace
        back_off = pace.first_back_off_seconds
        while not stop.is_set():
            began = time.monotonic()
            process = await self._start()
            code = await self._watch(process, stop)
            if stop.is_set():
                break
            now = time.monotonic()
            self._deaths.append(now)
            log.warning("service died", service=self._spec.name, code=code)
            if len(self._deaths) > pace.max_deaths and now - self._deaths[0] < pace.window_seconds:
                self._note("failed", message=f"died {len(self._deaths)} times in {pace.window_seconds:.0f} s")
                return
            if now - began > pace.calm_seconds:
                back_off = pace.first_back_off_seconds
            self._restarts += 1
            self._note("backing_off", message=f"ended with {code}, starts again in {back_off:.1f} s")
            if await lifecycle.wait_or_stop(stop, back_off):
                break
            back_off = min(2 * back_off, pace.last_back_off_seconds)
        self._note("stopped")

    async def _start(self) -> asyncio.subprocess.Process:
        with self._open_log() as output:
            process = await asyncio.create_subprocess_exec(
                *self._spec.command(self._address),
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a group of its own: what it leaves behind can be ended with it
                preexec_fn=_end_with_parent(),
            )
        self._note("running", pid=process.pid)
        return process

    async def _watch(self, process: asyncio.subprocess.Process, stop: asyncio.Event) -> int:
        # Waits for the end of the process, or for `stop` and then ends it. Returns its exit code.
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                done, _ = await asyncio.wait({ended}, timeout=self._pace.stop_seconds)
                if not done:
                    log.warning("service killed", service=self._spec.name, after_seconds=self._pace.stop_seconds)
                _kill_group(process.pid)
            return await ended
        finally:
            stopping.cancel()
            ended.cancel()

    def _open_log(self) -> IO[bytes]:
        path = self._run_dir / "logs" / f"{self._spec.name}.log"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > LOG_ROTATE_BYTES:
                path.replace(path.with_suffix(".log.1"))
        return path.open("ab")

    def _note(self, status: ServiceStatus, *, pid: int | None = None, message: str = "") -> None:
        self._state.services[self._spec.name] = ServiceState(
            address=self._address,
            status=status,
            process=ProcessRef.of(pid) if pid else None,
            restarts=self._restarts,
            message=message,
        )
        self._state.save(self._run_dir)


async def supervise(run_dir: Path, stop: asyncio.Event, specs: Sequence[ServiceSpec] | None = None) -> None:
    """Run all services (or `specs`) until `stop`, then end them stage by stage; until its stage each is kept alive."""
    state = require_state(run_dir)
    state.supervisor, state.stopping = ProcessRef.of(os.getpid()), False
    state.save(run_dir)
    budget_path = find_budget()
    stages = [(asyncio.Event(), Pace(stop_seconds=seconds)) for seconds in STOP_STAGE_SECONDS]
    tasks: list[list[asyncio.Task[None]]] = [[] for _ in stages]
    for spec in specs_for() if specs is None else specs:
        end, pace = stages[spec.stop_stage]
        service = Supervised(spec, state=state, run_dir=run_dir, budget_path=budget_path, pace=pace)
        task = asyncio.create_task(service.run(end), name=spec.name)
        # A service that is given up ends its task well; an error here is the supervisor's own, and ends everything.
        task.add_done_callback(lambda ended: stop.set() if not ended.cancelled() and ended.exception() else None)
        tasks[spec.stop_stage].append(task)
    await stop.wait()
    state.stopping = True
    state.save(run_dir)
    outcomes: list[BaseException | None] = []
    for (end, _), stage in zip(stages, tasks, strict=True):
        end.set()
        outcomes += await asyncio.gather(*stage, return_exceptions=True)
    # The state goes on naming this process: until it is gone it holds the lock, and the next `up` must wait for it.
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


@contextlib.contextmanager
def sole_supervisor(run_dir: Path) -> Iterator[None]:
    """Hold the run folder's lock; raises BlockingIOError when another supervisor does."""
    with (run_dir / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _end_with_parent() -> Callable[[], None]:
    # What runs in the child between fork and exec; everything it needs is loaded before the fork.
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def run() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return run


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """Run from the command line: `python -m headrace_deploy.supervisor RUN_DIR`."""
    run_dir = Path(sys.argv[1])
    logs.setup(service="supervisor", log_format="json", log_level="INFO")
    try:
        with sole_supervisor(run_dir):
            lifecycle.run(lambda stop: supervise(run_dir, stop))
    except BlockingIOError:
        sys.exit(f"another supervisor runs in {run_dir}")


if __name__ == "__main__":
    main()
