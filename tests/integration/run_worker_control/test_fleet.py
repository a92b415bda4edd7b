"""Executor processes: what they get to see, how they are watched, drained and replaced: real ones, a small script."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil
import pytest
from pydantic import SecretStr
from run_worker.adapters.executors import ExecutorRow
from run_worker.adapters.lock import ControlLock
from run_worker.loops.spawn import Fleet
from run_worker.settings import ControlSettings

from tests.integration.run_worker_control.world import until

SCRIPT = """
import json, os, pathlib, signal, sys
folder, stubborn = pathlib.Path(sys.argv[1]), sys.argv[2] == "stubborn"
signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else lambda *_: sys.exit(0))
mine = {name: value for name, value in os.environ.items() if name.startswith("HEADRACE_")}
file = folder / (mine["HEADRACE_EXECUTOR_ID"] + ".json")
file.with_suffix(".tmp").write_text(json.dumps(mine | {"pid": os.getpid()}))
file.with_suffix(".tmp").rename(file)
os.read(int(mine["HEADRACE_CONTROL_FD"]), 1)
file.with_suffix(".eof").write_text("control is gone")
"""


@dataclass
class Started:
    """A running fleet of script processes."""

    fleet: Fleet
    task: asyncio.Task[None]
    exits: asyncio.Queue[tuple[UUID, str]]
    folder: Path
    lock: ControlLock

    async def executors(self, number: int) -> list[dict[str, Any]]:
        """Wait until `number` processes have told their environment."""

        async def there() -> bool:
            return len(list(self.folder.glob("*.json"))) >= number

        await until(there, seconds=20)
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob("*.json"))]


@asynccontextmanager
async def started(folder: Path, *, executors: int = 2, mode: str = "meek") -> AsyncIterator[Started]:
    script = folder / "executor.py"
    script.write_text(SCRIPT)
    told = folder / "told"
    told.mkdir()
    settings = ControlSettings(
        budget_file=Path("budget.toml"),
        tokens_file=Path("tokens.json"),
        data_dir=folder,
        run_dir=folder,
        executors=executors,
        service_token=SecretStr("secret-token"),
        redis_url=SecretStr("redis://here"),
        control_dsn=SecretStr("secret-control"),
        graph_read_dsn=SecretStr("secret-graph-read"),
        executor_dsn=SecretStr("executor-dsn"),
        graph_dsn=SecretStr("graph-dsn"),
    )
    exits: asyncio.Queue[tuple[UUID, str]] = asyncio.Queue()
    lock = ControlLock(folder)
    fleet = Fleet(
        settings=settings,
        control_id=uuid4(),
        slots=50,
        lock_fd=lock.fd,
        exited=lambda executor_id, reason: exits.put_nowait((executor_id, reason)),
        command=(sys.executable, "-I", str(script), str(told), mode),
    )
    task = asyncio.create_task(fleet.run())
    try:
        yield Started(fleet, task, exits, told, lock)
    finally:
        await fleet.drain(seconds=0.5 if mode == "stubborn" else 10.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        lock.close()


async def test_executors_see_their_own_secrets_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Control's own secrets are in its environment and settings.  2. Executors start.  3. They have their roles, a
    pipe, an id each; nothing of control's.
    """
    monkeypatch.setenv("HEADRACE_CONTROL_DSN", "secret-control")
    monkeypatch.setenv("HEADRACE_SERVICE_TOKEN", "secret-token")
    async with started(tmp_path) as it:
        seen = await it.executors(2)
    assert len({env["HEADRACE_EXECUTOR_ID"] for env in seen}) == 2
    for env in seen:
        assert (env["HEADRACE_EXECUTOR_DSN"], env["HEADRACE_GRAPH_DSN"]) == ("executor-dsn", "graph-dsn")
        assert env["HEADRACE_SLOTS"] == "50"
        assert "secret" not in json.dumps(env)


async def test_a_killed_executor_is_told_and_replaced(tmp_path: Path) -> None:
    """1. kill -9 an executor.  2. Its exit is told with the signal.  3. Another one, with an id of its own, starts."""
    async with started(tmp_path, executors=1) as it:
        (first,) = await it.executors(1)
        os.kill(first["pid"], signal.SIGKILL)
        async with asyncio.timeout(10):
            told = await it.exits.get()
        await it.executors(2)
    assert told == (UUID(first["HEADRACE_EXECUTOR_ID"]), "signal 9")


async def test_a_drain_ends_all_and_starts_none(tmp_path: Path) -> None:
    """1. Drain two executors.  2. Both exit by themselves, told as exit 0, and no other starts."""
    async with started(tmp_path) as it:
        seen = await it.executors(2)
        await it.fleet.drain(seconds=10)
        told = [it.exits.get_nowait() for _ in range(2)]
        assert {reason for _, reason in told} == {"exit 0"}
        assert not any(psutil.pid_exists(env["pid"]) for env in seen)
        assert len(list(it.folder.glob("*.json"))) == 2
        assert not it.task.done()


async def test_a_drain_has_a_bound(tmp_path: Path) -> None:
    """1. An executor ignores SIGTERM.  2. After the bound it is killed."""
    async with started(tmp_path, executors=1, mode="stubborn") as it:
        await it.executors(1)
        await it.fleet.drain(seconds=0.2)
        assert it.exits.get_nowait()[1] == "signal 9"


async def test_the_end_of_control_is_the_end_of_the_pipe(tmp_path: Path) -> None:
    """1. Control's task ends without a drain.  2. Each executor sees the end of its pipe."""
    async with started(tmp_path) as it:
        await it.executors(2)
        it.task.cancel()

        async def both() -> bool:
            return len(list(it.folder.glob("*.eof"))) == 2

        await until(both)


async def test_an_executor_that_hangs_is_killed(tmp_path: Path) -> None:
    """1. An executor's row says that its lease ran out, though its process lives.  2. It gets SIGABRT, and is told.
    3. One whose lease is fresh is left alone.
    """
    async with started(tmp_path) as it:
        hung, fresh = await it.executors(2)
        it.fleet.judge([_row(hung, fresh=False), _row(fresh, fresh=True)])
        async with asyncio.timeout(10):
            told = await it.exits.get()
        assert told == (UUID(hung["HEADRACE_EXECUTOR_ID"]), "signal 6")
        assert psutil.pid_exists(fresh["pid"])


async def test_a_second_control_waits_for_the_firsts_executors(tmp_path: Path) -> None:
    """1. A control has the lock and an executor.  2. It goes, its executor stays: the lock is not to be had.
    3. The executor goes too: the next control has the lock, and knows whose it was.
    """
    first, second = uuid4(), uuid4()
    async with started(tmp_path, executors=1) as it:
        assert await it.lock.acquire(first, asyncio.Event()) == (True, None)
        await it.executors(1)
        it.lock.close()  # as the end of its process would
        next_lock = ControlLock(tmp_path)
        acquiring = asyncio.create_task(next_lock.acquire(second, asyncio.Event()))
        done, _ = await asyncio.wait({acquiring}, timeout=0.3)
        assert not done
        await it.fleet.drain(seconds=10)
        async with asyncio.timeout(10):
            assert await acquiring == (True, first)
        it.lock = next_lock  # the block closes it


def _row(env: dict[str, Any], *, fresh: bool) -> ExecutorRow:
    return ExecutorRow(
        executor_id=UUID(env["HEADRACE_EXECUTOR_ID"]),
        control_id=UUID(env["HEADRACE_CONTROL_ID"]),
        address="127.0.0.1:1",
        pid=env["pid"],
        slots=50,
        held=0,
        fresh=fresh,
        draining=False,
    )
