"""Readiness follows PostgreSQL: the service starts without it, is told when it comes, and when it goes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
from grpc_health.v1 import health_pb2
from headrace_kit.migrate import role_name

from tests.integration.sandbox_provisioner.process import running
from tests.support.servers import Servers, TestDatabase


class Gate:
    """A TCP door in front of PostgreSQL, on a port that it keeps: shut, connections are refused or cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._open |= {writer, far_writer}
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


async def test_ready_as_long_as_the_database_answers(database: TestDatabase, budget_path: Path, tmp_path: Path) -> None:
    """1. PostgreSQL is away at the start: the process lives, NOT_SERVING.  2. It comes: SERVING.
    3. It goes: NOT_SERVING, with the reason in the log, and no word of the password.
    """
    url = urlsplit(database.dsn("provisioner"))
    assert url.hostname is not None
    assert url.port is not None
    assert url.password is not None
    gate = Gate(url.hostname, url.port)
    await gate.open()
    await gate.shut()  # the port is known now, and nobody listens on it
    dsn = url._replace(netloc=f"{url.username}:{url.password}@127.0.0.1:{gate.port}").geturl()
    docker_host = f"unix://{tmp_path}/no-engine.sock"
    async with running(tmp_path, budget_path=budget_path, dsn=dsn, docker_host=docker_host) as process:
        assert "PostgreSQL is away" in (await process.logged("not ready"))["reason"]
        assert await process.health() == health_pb2.HealthCheckResponse.NOT_SERVING

        await gate.open()
        await process.logged("ready")
        assert await process.health() == health_pb2.HealthCheckResponse.SERVING

        await gate.shut()
        await process.logged("not ready", times=2)
        assert await process.health() == health_pb2.HealthCheckResponse.NOT_SERVING
        assert url.password not in str(process.lines)
        assert await process.stop() == 0


async def test_a_database_without_migrations_is_waited_for(
    servers: Servers, database: TestDatabase, budget_path: Path, tmp_path: Path
) -> None:
    """1. The database exists and nothing was migrated.  2. The process lives, NOT_SERVING, and names both versions."""
    name = f"{database.deployment}_empty"
    role = role_name(database.deployment, "provisioner")
    admin = await asyncpg.connect(servers.admin_dsn)
    try:
        await admin.execute(f'CREATE DATABASE "{name}"')
        await admin.execute(f'GRANT CONNECT ON DATABASE "{name}" TO "{role}"')
        dsn = urlsplit(database.dsn("provisioner"))._replace(path=f"/{name}").geturl()
        docker_host = f"unix://{tmp_path}/no-engine.sock"
        async with running(tmp_path, budget_path=budget_path, dsn=dsn, docker_host=docker_host) as process:
            reason = (await process.logged("not ready"))["reason"]
            assert reason == "run-worker runs on schema 2 or 3, the database has None; run migrate"
            assert await process.health() == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await process.stop() == 0
        await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await admin.close()
