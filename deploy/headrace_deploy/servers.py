"""Private PostgreSQL and Redis servers: files in one folder, loopback TCP on own ports, nothing of the machine's.

Invariants: passwords are never on a command line; a server is stopped only after its working directory proved that
it is the one this folder started.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headrace_deploy.binaries import Program, ServersError, find_postgres, find_redis
from headrace_deploy.processes import end_process, process_in, read_pid, replace_private, tail

START_SECONDS = 30
"""How long a server may take until it answers; recovery after a crash is inside."""
STOP_SECONDS = 15.0
"""How long a server may take to end before it is killed."""
PID_FILE_SECONDS = 1.0
"""Redis writes its pid file milliseconds after it detached; one without by then has ended."""
REDIS_MAX_MEMORY = "512mb"
"""Of a server that we start; above it the streams nearest their expiry go first and their viewers get `reset`."""
UNPRIVILEGED_ID = 1000
"""What PostgreSQL sees as its user inside a user namespace, where root is refused."""


def free_port(preferred: int = 0) -> int:
    """Return `preferred` if nobody listens there, else a port that is free now, on 127.0.0.1."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ServersError("no free port on 127.0.0.1")


def postgres_process(folder: Path) -> psutil.Process | None:
    """Return the PostgreSQL server of `folder` if it runs."""
    pid = read_pid(folder / "data" / "postmaster.pid")
    return process_in(pid, folder / "data") if pid else None


def redis_process(folder: Path) -> psutil.Process | None:
    """Return the Redis server of `folder` if it runs."""
    pid = read_pid(folder / "redis.pid")
    return process_in(pid, folder / "data") if pid else None


def redis_label(about: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return product, its version, and the version of Redis that it speaks as if it is another, from INFO server."""
    redis_version = str(about.get("redis_version", ""))
    if about.get("server_name") == "valkey":
        return "Valkey", str(about.get("valkey_version", "")), redis_version
    return "Redis", redis_version, ""


def stop_postgres(folder: Path) -> bool:
    """End the PostgreSQL server of `folder` (fast shutdown: sessions are cut, data is written); was there one?"""
    process = postgres_process(folder)
    if process:
        end_process(process, signal.SIGINT, STOP_SECONDS)
    return process is not None


def stop_redis(folder: Path) -> bool:
    """End the Redis server of `folder`; its append-only file is written first. Was there one?"""
    process = redis_process(folder)
    if process:
        end_process(process, signal.SIGTERM, STOP_SECONDS)
    return process is not None


@dataclass(slots=True)
class Postgres:
    """One PostgreSQL cluster in `folder`, made on the first start. `password` is its superuser's (`postgres`)."""

    folder: Path
    password: str
    port: int
    max_connections: int
    program: Program
    durable: bool = True
    """False lets a crash of the machine lose data; for tests."""

    @classmethod
    def prepare(
        cls,
        folder: Path,
        *,
        max_connections: int,
        password: str = "",
        port: int = 0,
        choice: str = "",
        durable: bool = True,
    ) -> Postgres:
        """Choose program, password and port; existing data chooses the program's major version."""
        stamp = folder / "data" / "PG_VERSION"
        major = int(stamp.read_text()) if stamp.exists() else None
        return cls(
            folder=folder.absolute(),
            password=password or secrets.token_hex(24),
            port=port if postgres_process(folder.absolute()) else free_port(port),
            max_connections=max_connections,
            program=find_postgres(choice, major=major),
            durable=durable,
        )

    @property
    def data(self) -> Path:
        """The cluster's data folder; also the server's working directory."""
        return self.folder / "data"

    def dsn(self, database: str = "postgres") -> str:
        """Return the superuser's address of `database`."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def process(self) -> psutil.Process | None:
        """Return the running server."""
        return postgres_process(self.folder)

    def start(self) -> None:
        """Create the cluster if there is none, and start the server if it does not run; returns when it accepts.

        Raises ServersError with the last lines of the log.
        """
        if self.process():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        prefix = self._unprivileged()
        log = self.folder / "postgres.log"
        if not (self.data / "PG_VERSION").exists():
            self._init(prefix)
        # A killed server leaves its pid file, and its number may belong to a zombie or to somebody else by now.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        (self.data / "postgresql.conf").write_text(self._configuration())
        done = self._run(
            [*prefix, self._tool("pg_ctl"), "-D", self.data, "-l", log, "-w", "-t", str(START_SECONDS), "start"]
        )
        if done.returncode:
            raise ServersError(f"PostgreSQL did not start\n{done.stdout}{done.stderr}{tail(log)}")

    def stop(self) -> None:
        """End the server if it runs."""
        stop_postgres(self.folder)

    def _init(self, prefix: list[str]) -> None:
        secret = self.folder / "password"
        shutil.rmtree(self.data, ignore_errors=True)  # a half-made cluster of an interrupted first start
        replace_private(secret, self.password)
        if prefix[:1] == ["setpriv"]:
            shutil.chown(secret, "nobody")
        try:
            options = ["-U", "postgres", "-A", "scram-sha-256", "--no-sync", "--locale=C", "-E", "UTF8"]
            done = self._run([*prefix, self._tool("initdb"), "-D", self.data, "--pwfile", secret, *options])
        finally:
            secret.unlink()
        if done.returncode:
            raise ServersError(f"initdb failed\n{done.stdout}{done.stderr}")

    def _configuration(self) -> str:
        return f"""# Written at each start; changes here are lost.
listen_addresses = '127.0.0.1'
port = {self.port}
unix_socket_directories = ''
max_connections = {self.max_connections}
shared_buffers = 128MB
password_encryption = scram-sha-256
# A killed client otherwise keeps its place until its query ends.
client_connection_check_interval = 1s
tcp_keepalives_idle = 30
tcp_keepalives_interval = 5
tcp_keepalives_count = 3
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m %u %a [%p] '
fsync = {"on" if self.durable else "off"}
full_page_writes = {"on" if self.durable else "off"}
"""

    def _tool(self, name: str) -> Path:
        return self.program.path.parent / name

    def _run(self, command: list[str | Path]) -> subprocess.CompletedProcess[str]:
        # The machine's PGHOST, PGDATA and the like must not reach a private server.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS + 10,
            env=environ,
            cwd=self.folder,
            check=False,
        )

    def _unprivileged(self) -> list[str]:
        # What to put before a command, since PostgreSQL refuses to run as root.
        if os.geteuid() != 0:
            return []
        mapped = ["unshare", "--user", f"--map-user={UNPRIVILEGED_ID}", f"--map-group={UNPRIVILEGED_ID}"]
        if shutil.which("unshare") and self._run([*mapped, "true"]).returncode == 0:
            return mapped
        for path in (self.folder, *self.folder.glob("**/*")):
            shutil.chown(path, "nobody")
        dropped = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        if not shutil.which("setpriv") or self._run([*dropped, "test", "-w", str(self.folder)]).returncode:
            raise ServersError(
                f"PostgreSQL refuses to run as root, and user `nobody` cannot reach {self.folder}; run as a normal"
                " user, or set HEADRACE_RUN_DIR to a folder below /var/tmp"
            )
        return dropped


@dataclass(slots=True)
class Redis:
    """One Redis (or Valkey) server in `folder`."""

    folder: Path
    password: str
    port: int
    program: Program
    durable: bool = True
    """True keeps an append-only file, written each second."""

    @classmethod
    def prepare(
        cls, folder: Path, *, password: str = "", port: int = 0, choice: str = "", durable: bool = True
    ) -> Redis:
        """Choose program, password and port."""
        return cls(
            folder=folder.absolute(),
            password=password or secrets.token_hex(24),
            port=port if redis_process(folder.absolute()) else free_port(port),
            program=find_redis(choice),
            durable=durable,
        )

    @property
    def data(self) -> Path:
        """Where the append-only file is; also the server's working directory."""
        return self.folder / "data"

    @property
    def url(self) -> str:
        """The address with its password."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def process(self) -> psutil.Process | None:
        """Return the running server."""
        return redis_process(self.folder)

    def start(self) -> None:
        """Start the server if it does not run; returns when it answers and has loaded its data.

        Raises ServersError with the last lines of the log.
        """
        if self.process():
            return
        self.data.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "redis.conf"
        replace_private(configuration, self._configuration())
        done = subprocess.run(
            [self.program.path, configuration], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=START_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode or not self._answers():
            raise ServersError(f"Redis did not start\n{done.stdout}{done.stderr}{tail(self.folder / 'redis.log')}")

    def stop(self) -> None:
        """End the server if it runs."""
        stop_redis(self.folder)

    def _answers(self) -> bool:
        began = time.monotonic()
        with redis.Redis.from_url(self.url, socket_timeout=2.0, retry=Retry(NoBackoff(), 0)) as client:
            while (waited := time.monotonic() - began) < START_SECONDS:
                try:
                    return bool(client.ping())
                except redis.RedisError:  # not listening yet, still loading, or it ended
                    if waited > PID_FILE_SECONDS and self.process() is None:
                        return False
                    time.sleep(0.01)
        return False

    def _configuration(self) -> str:
        return f"""# Written at each start; changes here are lost.
bind 127.0.0.1
port {self.port}
requirepass {self.password}
daemonize yes
pidfile "{self.folder / "redis.pid"}"
logfile "{self.folder / "redis.log"}"
dir "{self.data}"
save ""
appendonly {"yes" if self.durable else "no"}
appendfsync everysec
maxmemory {REDIS_MAX_MEMORY}
maxmemory-policy volatile-ttl
"""
