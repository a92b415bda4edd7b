"""The executor processes: exec'ed, watched, restarted with back-off, drained, and killed when they hang.

Invariants: an executor never gets control's database role or token; the end of the inherited pipe tells it that control
is gone; and it holds control's lock file open, so that no second control starts while one of its processes lives.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import structlog
from headrace_kit.ids import new_id
from headrace_kit.lifecycle import wait_or_stop

from run_worker.adapters.executors import ExecutorRow
from run_worker.settings import ControlSettings

BACK_OFF_MIN_SECONDS: Final = 0.2
BACK_OFF_MAX_SECONDS: Final = 5.0
STEADY_SECONDS: Final = 30.0
"""An executor that lived this long is restarted at once; one that did not waits twice as long each time."""
REGISTER_SECONDS: Final = 60.0
"""Loading graphs takes seconds; an executor without a row after this hangs."""
ABORT_SECONDS: Final = 2.0
"""From SIGABRT, on which the stacks of a hanging executor go to the log, to SIGKILL."""

CONTROL_ONLY: Final = frozenset(
    f"HEADRACE_{name}" for name in ("CONTROL_DSN", "GRAPH_READ_DSN", "SERVICE_TOKEN", "LISTEN", "RUN_DIR")
)
"""Variables of control's environment that executors never see: graph code runs there."""

log = structlog.get_logger("run_worker.spawn")


@dataclass(slots=True)
class _Child:
    executor_id: UUID
    process: asyncio.subprocess.Process
    started: float
    registered: bool = False
    killer: asyncio.Task[None] | None = field(default=None)


class Fleet:
    """All executors of this control."""

    def __init__(
        self,
        *,
        settings: ControlSettings,
        control_id: UUID,
        slots: int,
        lock_fd: int,
        exited: Callable[[UUID, str], None],
        command: Sequence[str] = (sys.executable, "-m", "run_worker", "executor"),
    ) -> None:
        """Prepare; `slots` is the share of each executor, `exited` is told each exit that was seen."""
        self._settings = settings
        self._control_id = control_id
        self._slots = slots
        self._lock_fd = lock_fd
        self._exited = exited
        self._command = command
        self._children: dict[UUID, _Child] = {}
        self._draining = asyncio.Event()
        self._empty = asyncio.Event()

    async def run(self) -> None:
        """Keep the executors alive until cancelled; then their pipe ends, and they hand back and exit."""
        read_end, write_end = os.pipe()
        try:
            async with asyncio.TaskGroup() as keepers:
                for place in range(self._settings.executors):
                    keepers.create_task(self._keep(read_end), name=f"executor-{place}")
            self._empty.set()
            await asyncio.Event().wait()  # drained: only the owner's cancel ends this task
        finally:
            self._empty.set()
            os.close(write_end)
            os.close(read_end)

    def judge(self, rows: Sequence[ExecutorRow]) -> None:
        """Kill our executors that live without renewing: call it only while leases may be judged."""
        now = asyncio.get_running_loop().time()
        by_id = {row.executor_id: row for row in rows}
        for child in self._children.values():
            row = by_id.get(child.executor_id)
            child.registered = child.registered or row is not None
            if row is not None and not row.fresh:
                self._kill(child, "its lease ran out")
            elif not child.registered and now - child.started > REGISTER_SECONDS:
                self._kill(child, "it did not register")

    async def drain(self, *, seconds: float) -> None:
        """Stop all executors: SIGTERM, and SIGKILL for those that are still there after `seconds`."""
        self._draining.set()
        for child in self._children.values():
            _send(child.process, signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            for child in self._children.values():
                log.error("executor did not drain", executor_id=str(child.executor_id), pid=child.process.pid)
                _send(child.process, signal.SIGKILL)
            async with asyncio.timeout(ABORT_SECONDS):
                await self._empty.wait()

    async def _keep(self, read_end: int) -> None:
        delay = 0.0
        while not await wait_or_stop(self._draining, delay):
            try:
                child = await self._start(read_end)
            except OSError as error:
                log.error("executor not started", error=f"{type(error).__name__}: {error}")
                delay = BACK_OFF_MAX_SECONDS
                continue
            lived = await self._until_exit(child)
            delay = 0.0 if lived >= STEADY_SECONDS else min(max(BACK_OFF_MIN_SECONDS, 2 * delay), BACK_OFF_MAX_SECONDS)

    async def _until_exit(self, child: _Child) -> float:
        """Wait for the exit, tell it, and return how many seconds the executor lived."""
        try:
            code = await child.process.wait()
        finally:
            del self._children[child.executor_id]
            if child.killer is not None:
                child.killer.cancel()
        lived = asyncio.get_running_loop().time() - child.started
        log.info("executor exited", executor_id=str(child.executor_id), reason=_reason(code), seconds=round(lived, 1))
        self._exited(child.executor_id, _reason(code))
        return lived

    async def _start(self, read_end: int) -> _Child:
        executor_id = new_id()
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environment(executor_id, read_end),
            # The lock is this one descriptor: the executor must keep it from whatever its graphs start.
            pass_fds=(read_end, self._lock_fd),
            stdin=asyncio.subprocess.DEVNULL,
        )
        child = _Child(executor_id, process, asyncio.get_running_loop().time())
        self._children[executor_id] = child
        log.info("executor started", executor_id=str(executor_id), pid=process.pid)
        if self._draining.is_set():
            # The drain came while it was being started.
            _send(process, signal.SIGTERM)
        return child

    def _environment(self, executor_id: UUID, read_end: int) -> Mapping[str, str]:
        settings = self._settings
        inherited = {name: value for name, value in os.environ.items() if name not in CONTROL_ONLY}
        return {
            **inherited,
            "HEADRACE_BUDGET_FILE": str(settings.budget_file),
            "HEADRACE_TOKENS_FILE": str(settings.tokens_file),
            "HEADRACE_DATA_DIR": str(settings.data_dir),
            "HEADRACE_LOG_FORMAT": settings.log_format,
            "HEADRACE_LOG_LEVEL": settings.log_level,
            "HEADRACE_EXECUTORS": str(settings.executors),
            "HEADRACE_REDIS_SHARDS": str(settings.redis_shards),
            "HEADRACE_REDIS_URL": settings.redis_url.get_secret_value(),
            "HEADRACE_LANGGRAPH_JSON": settings.langgraph_json,
            "HEADRACE_EXECUTOR_DSN": settings.executor_dsn.get_secret_value(),
            "HEADRACE_GRAPH_DSN": settings.graph_dsn.get_secret_value(),
            "HEADRACE_CONTROL_FD": str(read_end),
            "HEADRACE_LOCK_FD": str(self._lock_fd),
            "HEADRACE_CONTROL_ID": str(self._control_id),
            "HEADRACE_EXECUTOR_ID": str(executor_id),
            "HEADRACE_SLOTS": str(self._slots),
        }

    def _kill(self, child: _Child, why: str) -> None:
        if child.killer is None:
            log.error("executor hangs", executor_id=str(child.executor_id), pid=child.process.pid, why=why)
            child.killer = asyncio.create_task(self._abort(child.process), name="kill-executor")

    @staticmethod
    async def _abort(process: asyncio.subprocess.Process) -> None:
        _send(process, signal.SIGABRT)
        await asyncio.sleep(ABORT_SECONDS)
        _send(process, signal.SIGKILL)


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    # It may have exited a moment ago; whoever waits for it sees that.
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _reason(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"
