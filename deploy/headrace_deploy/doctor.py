"""Examines machine and deployment: each finding says ok, warn or fail, and what to do next."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import asyncpg
import redis
from headrace_kit import budget as budgets

from headrace_deploy import probes, roles
from headrace_deploy.binaries import (
    POSTGRES_MINIMUM,
    REDIS_MINIMUM,
    ServersError,
    find_postgres,
    find_redis,
    servers_choice,
)
from headrace_deploy.servers import redis_label
from headrace_deploy.state import ServerState, State, StateError, load_state

MIN_FREE_DISK_BYTES = 1024**3  # PostgreSQL stops with a full disk; its journal alone may take this much
PYTHON_MINIMUM = (3, 11)
CONNECT_SECONDS = 3.0

_FIGURES = """
SELECT current_setting('server_version_num')::int / 10000 AS major, current_setting('server_version') AS version,
  current_setting('max_connections')::int AS max_connections,
  (SELECT sum(numbackends)::int FROM pg_stat_database WHERE datid <> 0) AS sessions
"""
# Not pg_stat_activity: without pg_read_all_stats it hides what other roles' sessions are.
_SCHEMA = "SELECT service, max(version) AS version FROM schema_migrations GROUP BY service"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination."""

    level: Literal["ok", "warn", "fail"]
    name: str
    detail: str
    next_step: str = ""


def examine(run_dir: Path) -> list[Finding]:
    """Return all findings, the machine's first; nothing is changed."""
    findings = [_python(), _disk(run_dir), _loopback(), _budget(), *_programs(), _docker(), _chromium()]
    try:
        state = load_state(run_dir)
    except StateError as error:
        return [*findings, Finding("fail", "state", str(error), "remove the file, then `make up`")]
    if state is None or not (state.supervisor and state.supervisor.find()):
        return [*findings, Finding("warn", "deployment", f"nothing runs in {run_dir}", "`make up`")]
    return [*findings, *_running(state)]


def _python() -> Finding:
    found = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < PYTHON_MINIMUM:
        return Finding("fail", "python", found, "install Python 3.11 or newer, remove .venv, `make setup`")
    return Finding("ok", "python", found)


def _disk(run_dir: Path) -> Finding:
    place = next(path for path in (run_dir, *run_dir.parents) if path.exists())
    free = shutil.disk_usage(place).free
    detail = f"{free / 1024**3:.1f} GiB free at {place}"
    if free < MIN_FREE_DISK_BYTES:
        return Finding("fail", "disk", detail, "make room, or set HEADRACE_RUN_DIR to another disk")
    return Finding("ok", "disk", detail)


def _loopback() -> Finding:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        return Finding("fail", "loopback", str(error), "services speak over 127.0.0.1; bring the interface lo up")
    return Finding("ok", "loopback", "127.0.0.1 gives ports")


def _budget() -> Finding:
    path = roles.find_budget()
    try:
        budget = budgets.load(path)
    except (OSError, budgets.BudgetError, KeyError, ValueError) as error:
        return Finding("fail", "budget", str(error), f"repair {path}")
    return Finding("ok", "budget", f"{budget.client_budget} of {budget.max_connections} connections are shared out")


def _programs() -> Iterator[Finding]:
    finders: dict[str, Callable[[str], Any]] = {"postgres program": find_postgres, "redis program": find_redis}
    for name, find in finders.items():
        try:
            program = find(servers_choice())
        except ServersError as error:
            yield Finding("fail", name, str(error), "`make setup`")
        else:
            yield Finding("ok", name, f"{program.product} {program.version} ({program.source}: {program.path})")


def _docker() -> Finding:
    found = shutil.which("docker")
    if Path("/var/run/docker.sock").exists():
        return Finding("ok", "docker", found or "/var/run/docker.sock")
    return Finding("warn", "docker", "no engine", "only sandboxes need it; install docker.io and start it")


def _chromium() -> Finding:
    found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if found:
        return Finding("ok", "chromium", found)
    return Finding("warn", "chromium", "not installed", "only browser tests need it; install chromium")


def _running(state: State) -> Iterator[Finding]:
    yield from asyncio.run(_postgres(state))
    yield _redis(state)
    for name, answer in probes.ready(state).items():
        if answer == "ready":
            yield Finding("ok", name, f"ready on {state.services[name].address}")
        else:
            yield Finding("fail", name, answer, f"`headrace logs {name}`")


async def _postgres(state: State) -> list[Finding]:
    try:
        connection = await asyncpg.connect(state.dsns[roles.MIGRATE_ROLE], timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError, KeyError) as error:
        return [Finding("fail", "postgresql", f"{type(error).__name__}: {error}", "`make down`, then `make up`")]
    try:
        row = await connection.fetchrow(_FIGURES)
        found = {record["service"]: record["version"] for record in await connection.fetch(_SCHEMA)}
    finally:
        await connection.close()
    assert row is not None
    needed = budgets.load(roles.find_budget()).client_budget + roles.MIGRATE_CONNECTIONS
    detail = f"{row['version']}, {row['sessions']} of {row['max_connections']} connections used"
    findings = [Finding("ok", "postgresql", detail)]
    if row["major"] < POSTGRES_MINIMUM:
        findings = [Finding("fail", "postgresql", detail, f"Headrace needs PostgreSQL {POSTGRES_MINIMUM}")]
    elif row["max_connections"] < needed:
        findings = [Finding("fail", "postgresql", detail, f"set max_connections to {needed} or more")]
    wanted = {name: len(list(folder.glob("*.sql"))) for name, folder in roles.migration_folders().items()}
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    if found != wanted:
        findings.append(Finding("fail", "schema", f"{shown}; the code has {wanted}", "`make down`, then `make up`"))
    else:
        findings.append(Finding("ok", "schema", shown))
    return findings


def _redis(state: State) -> Finding:
    if state.redis is None:
        return Finding("fail", "redis", "no address", "`make down`, then `make up`")
    try:
        with redis.Redis.from_url(state.redis.url, socket_timeout=CONNECT_SECONDS) as client:
            about: Any = client.info("server")
            policy: Any = client.config_get("maxmemory-policy")
    except redis.RedisError as error:
        return Finding("fail", "redis", f"{type(error).__name__}: {error}", "`make down`, then `make up`")
    return judge_redis(about, str(policy.get("maxmemory-policy", "")))


def judge_redis(about: Mapping[str, Any], policy: str) -> Finding:
    """Return the finding about a Redis server, from its INFO server and its policy.

    One that may evict any key is refused, as it would drop live streams.
    """
    product, version, speaks = redis_label(about)
    told = ServerState(managed=False, url="", product=product, version=version, speaks=speaks)
    detail = f"{told.label}, maxmemory-policy {policy or 'unknown'}"
    if int((speaks or version).split(".")[0]) < REDIS_MINIMUM:
        return Finding("fail", "redis", detail, f"Headrace needs Redis {REDIS_MINIMUM}")
    if policy.startswith("allkeys-"):
        return Finding("fail", "redis", detail, "set maxmemory-policy to volatile-ttl or noeviction")
    if not policy:
        return Finding(
            "warn", "redis", detail, "CONFIG GET is not permitted; make sure it is volatile-ttl or noeviction"
        )
    return Finding("ok", "redis", detail)
