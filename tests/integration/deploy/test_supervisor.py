"""The supervisor restarts what dies, within bounds, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from headrace_deploy.processes import is_alive
from headrace_deploy.services import SPECS, ServiceSpec, make_tokens
from headrace_deploy.state import ServiceState, State, require_state
from headrace_deploy.supervisor import Pace, Supervised, sole_supervisor, supervise

FAST = Pace(first_back_off_seconds=0.01, last_back_off_seconds=0.05, max_deaths=3, stop_seconds=0.3)
DIES = "raise SystemExit(3)"
LIVES = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])
signal.pause()
"""
TELLS_ITS_LIFE = """
import os, signal, sys, time

def tell(what):
    with open(os.environ["HEADRACE_TEST_LIVES"], "a") as lives:
        lives.write(f"{sys.argv[1]} {what}\\n")

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
tell("up")
signal.sigwait({signal.SIGTERM})
tell("told")
time.sleep(0.2)  # a drain: who is told too early is told during it
tell("ended")
"""


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Supervised]:
    """Return a maker of supervised services from a line of Python."""
    (tmp_path / "logs").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    state = State(services={spec.name: ServiceState(address="127.0.0.1:1") for spec in SPECS}, tokens={})
    state.services["probe"] = ServiceState(address="127.0.0.1:1")

    def make(source: str) -> Supervised:
        (tmp_path / "probe_service.py").write_text(source)
        spec = ServiceSpec("probe", "probe_service", "tcp", token=False)
        return Supervised(spec, state=state, run_dir=tmp_path, budget_path=tmp_path / "budget.toml", pace=FAST)

    return make


async def eventually(condition: Callable[[], Any], *, seconds: float = 20) -> Any:
    """Return the first true value of `condition`: the lives of other processes give no event to wait for."""
    async with asyncio.timeout(seconds):
        while True:
            if found := condition():
                return found
            await asyncio.sleep(0.02)


async def running(run_dir: Path, *, other_than: int = 0) -> psutil.Process:
    """Wait until the service has said in its log that it runs, in another process than `other_than`."""

    def find() -> psutil.Process | None:
        log = run_dir / "logs" / "probe.log"
        pids = [int(line) for line in log.read_text().split()] if log.exists() else []
        return psutil.Process(pids[-1]) if pids and pids[-1] != other_than else None

    process = await eventually(find)
    assert isinstance(process, psutil.Process)
    return process


async def test_a_killed_service_is_started_again(supervised: Callable[..., Supervised], tmp_path: Path) -> None:
    """1. The service is killed. 2. Another process takes its place, and the restart is counted. 3. Stop ends it."""
    stop = asyncio.Event()
    task = asyncio.create_task(supervised(LIVES).run(stop))
    first = await running(tmp_path)
    first.kill()
    second = await running(tmp_path, other_than=first.pid)
    assert require_state(tmp_path).services["probe"].restarts == 1
    stop.set()
    await asyncio.wait_for(task, 10)
    assert not is_alive(second)
    assert require_state(tmp_path).services["probe"].status == "stopped"


async def test_a_service_that_always_dies_is_given_up(supervised: Callable[..., Supervised], tmp_path: Path) -> None:
    """1. The service ends at once, each time. 2. After the bound it is `failed`, with the reason, and left alone."""
    await asyncio.wait_for(supervised(DIES).run(asyncio.Event()), 30)
    service = require_state(tmp_path).services["probe"]
    assert service.status == "failed"
    assert service.message == "died 4 times in 60 s"
    assert service.process is None


async def test_what_a_service_leaves_behind_ends_with_it(supervised: Callable[..., Supervised], tmp_path: Path) -> None:
    """1. A service ignores SIGTERM and has a child. 2. After the grace both are killed."""
    stop = asyncio.Event()
    task = asyncio.create_task(supervised(STUBBORN).run(stop))
    process = await running(tmp_path)
    children = await eventually(process.children)
    stop.set()
    await asyncio.wait_for(task, 10)
    await eventually(lambda: not any(is_alive(left) for left in (process, *children)), seconds=5)


async def test_services_end_in_the_order_in_which_runs_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    1. All services run; the supervisor is told to stop.
    2. The gateway and the run-worker end while all others live, the model provider after everything else.
    3. The state says that it stops from before the first is told.
    """
    (tmp_path / "logs").mkdir()
    (tmp_path / "teller.py").write_text(TELLS_ITS_LIFE)
    lives = tmp_path / "lives"
    lives.touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HEADRACE_TEST_LIVES", str(lives))
    services = {spec.name: ServiceState(address="127.0.0.1:1") for spec in SPECS}
    State(services=services, tokens=make_tokens({})).save(tmp_path)
    specs = [replace(spec, module="teller", roles=(), redis=False, arguments=(spec.name,)) for spec in SPECS]
    stop = asyncio.Event()
    task = asyncio.create_task(supervise(tmp_path, stop, specs))
    await eventually(lambda: len(lives.read_text().splitlines()) == len(SPECS))
    assert not require_state(tmp_path).stopping
    stop.set()
    await eventually(lambda: "told" in lives.read_text())
    assert require_state(tmp_path).stopping
    await asyncio.wait_for(task, 20)

    told = lives.read_text().splitlines()[len(SPECS) :]
    stages = (("api-gateway", "run-worker"), ("event-relay", "sandbox-provisioner"), ("model-provider",))
    for stage in stages:
        here, told = told[: 2 * len(stage)], told[2 * len(stage) :]
        assert sorted(here) == sorted(f"{name} {what}" for name in stage for what in ("told", "ended"))


def test_two_supervisors_cannot_share_a_folder(tmp_path: Path) -> None:
    """1. The lock is held. 2. A second supervisor says so and ends at once."""
    with sole_supervisor(tmp_path):
        second = subprocess.run(
            [sys.executable, "-m", "headrace_deploy.supervisor", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert second.returncode == 1
    assert "another supervisor runs" in second.stderr


def test_a_supervisor_without_a_state_says_what_to_do(tmp_path: Path) -> None:
    """1. Nothing was prepared. 2. The message names the command; SIGTERM is not needed."""
    ended = subprocess.run(
        [sys.executable, "-m", "headrace_deploy.supervisor", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=os.environ | {"PYTHONWARNINGS": ""},
    )
    assert ended.returncode not in (0, -signal.SIGTERM)
    assert "run `make up`" in ended.stderr
