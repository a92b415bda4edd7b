"""A gateway of the real code over a real database and scripted neighbours, with heartbeats of a fifth of a second."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx
import pytest
from api_gateway import server
from api_gateway.domain import keys
from api_gateway.settings import GatewaySettings
from pydantic import SecretStr

from tests.integration.api_gateway.sse_reader import RawResponse, open_raw
from tests.support.fake_services import SERVICE_TOKEN, ScriptedRelay, ScriptedRuns, serving, tokens_file
from tests.support.servers import TestDatabase

FIRST_KEY = "hr_0123456789ab_" + "a" * 43
HEARTBEAT_SECONDS = 0.2
OUTAGE_SECONDS = 2.0

_ADD = "INSERT INTO api_keys (key_id, uid, key_sha256, scopes, expires_at) VALUES ($1, $2, $3, $4, $5)"


def fast_budget(budget_path: Path, folder: Path, **limits: int) -> Path:
    """The budget file with short heartbeats, and other limits where named."""
    text = budget_path.read_text()
    figures = {"heartbeat_seconds": HEARTBEAT_SECONDS, "outage_seconds": OUTAGE_SECONDS, **limits}
    for name, value in figures.items():
        text, count = re.subn(rf"(?m)^{name} = \S+", f"{name} = {value}", text)
        assert count == 1, name
    path = folder / "budget.toml"
    path.write_text(text)
    return path


@dataclass
class House:
    """The gateway and what is around it."""

    gateway: server.Gateway
    config: GatewaySettings
    runs: ScriptedRuns
    relay: ScriptedRelay
    database: TestDatabase
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def address(self) -> str:
        return self.gateway.address

    async def add_key(self, *scopes: str, uid: str = "ann", expires_at: object = None) -> tuple[str, str]:
        """Insert a key behind the gateway's back; returns its id and text."""
        key_id, key = keys.mint()
        connection = await asyncpg.connect(self.database.admin_dsn)
        try:
            await connection.execute(_ADD, key_id, uid, keys.digest(key), list(scopes), expires_at)
        finally:
            await connection.close()
        return key_id, key

    async def revoke(self, key_id: str) -> None:
        connection = await asyncpg.connect(self.database.admin_dsn)
        try:
            await connection.execute("UPDATE api_keys SET revoked_at = now() WHERE key_id = $1", key_id)
        finally:
            await connection.close()

    async def open(self, path: str, *, key: str = FIRST_KEY, **more: object) -> RawResponse:
        """Open a raw response."""
        return await open_raw(self.address, path, key=key, **more)  # type: ignore[arg-type]  # passed through

    def client(self, key: str = FIRST_KEY) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(base_url=f"http://{self.address}", headers=headers, timeout=15)


async def eventually(check: Callable[[], Awaitable[bool]], *, seconds: float = 3.0) -> None:
    """Ask until `check` holds, for what other processes' clocks decide and no event tells."""
    for _ in range(int(seconds / 0.02)):
        if await check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


async def no_streams(house: House) -> None:
    """Wait until the relay has no open stream and the gateway holds no place."""

    async def none() -> bool:
        return house.gateway.streams.count == 0

    async with asyncio.timeout(2):
        await house.relay.idle.wait()
    await eventually(none)


def config_for(
    *, budget_file: Path, folder: Path, dsn: str, runs: str, relay: str, sandbox: str, listen: str = "127.0.0.1:0"
) -> GatewaySettings:
    return GatewaySettings(
        listen=listen,
        budget_file=budget_file,
        tokens_file=folder / "tokens.json",
        service_token=SecretStr(SERVICE_TOKEN),
        data_dir=folder,
        gateway_dsn=SecretStr(dsn),
        run_worker_address=runs,
        event_relay_address=relay,
        sandbox_provisioner_address=sandbox,
        first_key_sha256=hashlib.sha256(FIRST_KEY.encode()).hexdigest(),
    )


@pytest.fixture(scope="module")
async def _house(
    tmp_path_factory: pytest.TempPathFactory, budget_path: Path, database: TestDatabase
) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("gateway")
    tokens = tokens_file(folder)
    runs, relay = ScriptedRuns(), ScriptedRelay()
    async with serving(tokens, runs=runs) as run_server, serving(tokens, relay=relay) as relay_server:
        config = config_for(
            budget_file=fast_budget(budget_path, folder, streams_per_user=4),
            folder=folder,
            dsn=database.dsn("gateway"),
            runs=run_server.address,
            relay=relay_server.address,
            sandbox="127.0.0.1:1",
        )
        house = House(await server.startup(config), config, runs, relay, database)
        running = asyncio.create_task(server.run(house.gateway, house.stop))
        async with asyncio.timeout(10):
            await house.gateway.ready.wait()
        yield house
        house.stop.set()
        await running
        await server.shutdown(house.gateway)


@pytest.fixture
def house(_house: House) -> House:
    """The module's gateway, its neighbours without a script and without memory."""
    _house.runs.reset()
    _house.relay.reset()
    return _house


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    async with house.client() as client:
        yield client
