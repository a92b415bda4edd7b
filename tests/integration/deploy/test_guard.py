"""A test process that is killed leaves no servers and no processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
from headrace_deploy.processes import is_alive
from headrace_deploy.roles import repository_root
from headrace_deploy.servers import postgres_process, redis_process

TEST_PROCESS = """
import signal, subprocess, sys
from pathlib import Path
from headrace_deploy.servers import Postgres, Redis
from tests.support import guard

folder = Path(sys.argv[1])
guard.start(folder)
Postgres.prepare(folder / "postgres", max_connections=10, durable=False).start()
Redis.prepare(folder / "redis", durable=False).start()
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print(child.pid, flush=True)
signal.pause()
"""


def test_what_a_killed_test_process_started_ends_with_it(tmp_path: Path) -> None:
    """1. A process starts PostgreSQL, Redis and a detached child. 2. It is killed with -9. 3. All of them end."""
    with subprocess.Popen(
        [sys.executable, "-c", TEST_PROCESS, str(tmp_path)], cwd=repository_root(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            child = psutil.Process(int(process.stdout.readline()))
            servers = [postgres_process(tmp_path / "postgres"), redis_process(tmp_path / "redis")]
        finally:
            process.kill()
    started = [child, *(server for server in servers if server)]
    assert len(started) == 3
    deadline = time.monotonic() + 30
    while any(is_alive(left) for left in started):
        assert time.monotonic() < deadline, started
        time.sleep(0.05)
