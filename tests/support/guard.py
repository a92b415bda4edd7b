"""Ends whatever a test process started when that process has gone, however it went: a kill -9 leaves no servers.

A watcher process in a session of its own holds the read end of a pipe whose write end only the test process has. At
end of file it ends every process that carries the test process's mark in its environment, which services and executors
inherit, or that works below the test process's folder: servers, which overwrite their environment with a title, do.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from headrace_deploy.processes import is_alive

MARK = "HEADRACE_TEST_PROCESS"
ROUNDS = 3
"""A process that was being started during one round is found in the next."""
TERM_SECONDS = 10.0
KILL_SECONDS = 5.0
LEAVE_SECONDS = 30.0
WATCHER = pytest.StashKey[subprocess.Popen[bytes]]()


def start(folder: Path | None = None) -> subprocess.Popen[bytes]:
    """Mark this process's future children and start their watcher; closing its stdin has the same effect as dying."""
    os.environ[MARK] = mark = secrets.token_hex(8)
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    watcher = subprocess.Popen(
        [sys.executable, __file__, mark], stdin=subprocess.PIPE, env=unmarked, start_new_session=True
    )
    if folder:
        tell(watcher, folder)
    return watcher


def tell(watcher: subprocess.Popen[bytes], folder: Path) -> None:
    """Name the folder below which servers of this process work."""
    assert watcher.stdin is not None
    watcher.stdin.write(bytes(folder.resolve()))
    watcher.stdin.flush()


def started(mark: str, folder: Path | None) -> list[psutil.Process]:
    """Return the live processes that were started under a mark, or work below a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if process.environ().get(MARK) == mark or (folder and Path(process.cwd()).is_relative_to(folder)):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def end(mark: str, folder: Path | None) -> None:
    """End what was started: politely, then not."""
    for _ in range(ROUNDS):
        found = started(mark, folder)
        if not found:
            return
        numbers = {process.pid for process in found}
        for process in found:
            try:
                if process.name() != "postgres":
                    process.terminate()
                elif process.ppid() not in numbers:
                    process.send_signal(signal.SIGINT)  # a server's first process, which ends its others in order
            except psutil.Error:
                continue
        for process in still_alive(found, seconds=TERM_SECONDS):
            try:
                process.kill()
            except psutil.Error:
                continue
        still_alive(found, seconds=KILL_SECONDS)


def still_alive(processes: list[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Wait for ends; a zombie, which PID 1 of a container may leave for long, has ended."""
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def pytest_configure(config: pytest.Config) -> None:
    config.stash[WATCHER] = start()


def pytest_unconfigure(config: pytest.Config) -> None:
    watcher = config.stash.get(WATCHER, None)
    if watcher is not None:
        watcher.communicate(timeout=LEAVE_SECONDS)


@pytest.fixture(scope="session", autouse=True)
def _guarded_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    tell(request.config.stash[WATCHER], tmp_path_factory.getbasetemp())


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    told = sys.stdin.buffer.read().decode()
    end(sys.argv[1], Path(told) if told else None)
