"""The gateway in front of the real relay, over a real Redis and PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
from api_gateway import server
from event_relay import server as relay_server
from event_relay.settings import RelaySettings
from headrace_contract.projection import FIELD_DATA, FIELD_EVENT, events_key
from headrace_kit.ids import new_id
from headrace_kit.redis import open_redis
from pydantic import SecretStr

from tests.integration.api_gateway.conftest import House

THREAD = "INSERT INTO threads (thread_id, uid, agent, state, active_run_id) VALUES ($1, 'local', 'a', 'busy', $2)"
REQUEST = """
INSERT INTO requests (request_id, thread_id, uid, agent, run_id, state, body_sha256, dispatched_at)
VALUES ($1, $2, 'local', 'a', $3, 'dispatched', '', now())
"""
RUN = """
INSERT INTO runs (run_id, request_id, thread_id, uid, agent, ordinal, root_run_id)
VALUES ($1, $2, $3, 'local', 'a', 1, $1)
"""
EVENTS = 2_000


class _Relay:
    """The real relay, started and stopped on one address."""

    def __init__(self, settings: RelaySettings) -> None:
        self.settings = settings
        self.stop = asyncio.Event()

    async def __aenter__(self) -> _Relay:
        self.relay = await relay_server.startup(self.settings)
        self.settings = self.settings.model_copy(update={"listen": self.relay.server.address})
        self.running = asyncio.create_task(relay_server.run(self.relay, self.stop))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await self.running
        await relay_server.close(self.relay)


async def _seed(dsn: str) -> str:
    run_id, request_id, thread_id = new_id(), new_id(), new_id()
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(THREAD, thread_id, run_id)
            await connection.execute(REQUEST, request_id, thread_id, run_id)
            await connection.execute(RUN, run_id, request_id, thread_id)
    finally:
        await connection.close()
    return str(run_id)


async def test_viewers_over_a_restart_of_the_relay(house: House, redis_url: str, tmp_path: Path) -> None:
    """
    1. A run writes 2,000 events; three viewers follow it through the gateway and the real relay.
    2. In the middle the relay stops, and another one starts on its address.
    3. Each viewer's one response holds every id once, in order, and is completed behind `end`.
    4. Another user, and a run that nobody has, get the same 404.
    """
    run_id = await _seed(house.database.admin_dsn)
    settings = RelaySettings(
        budget_file=house.config.budget_file,
        tokens_file=house.config.tokens_file,
        data_dir=tmp_path,
        relay_dsn=SecretStr(house.database.dsn("relay")),
        redis_url=SecretStr(redis_url),
    )
    redis = open_redis(redis_url, max_connections=2, client_name="test")
    path = f"/v1/runs/{run_id}/events"

    async def write(first: int, last: int) -> None:
        for n in range(first, last + 1):
            name = b"end" if n == EVENTS else b"custom"
            await redis.xadd(events_key(run_id), {FIELD_EVENT: name, FIELD_DATA: b"%d" % n}, id=f"1-{n}")

    first = _Relay(settings)
    async with first:
        config = house.config.model_copy(update={"event_relay_address": first.relay.server.address})
        gateway = await server.startup(config)
        gateway.ready.set()
        front = House(gateway, config, house.runs, house.relay, house.database)
        async with asyncio.timeout(10), front.client() as client:
            while (await client.get("/readyz")).json()["components"]["event_relay"]["status"] != "ok":  # noqa: ASYNC110  # another server's state
                await asyncio.sleep(0.2)
            _, other = await house.add_key("read", uid="other")
            foreign = await client.get(path, headers={"authorization": f"Bearer {other}"})
            unknown = await client.get(f"/v1/runs/{new_id()}/events")
            assert foreign.status_code == unknown.status_code == 404
            assert foreign.json()["reason"] == unknown.json()["reason"]
        await write(1, 10)
        viewers = [await front.open(path) for _ in range(3)]
        await write(11, 700)
        await viewers[0].until(b"id: 1-500\n")
    await write(701, 1_000)
    async with _Relay(first.settings):
        await write(1_001, EVENTS)
        for viewer in viewers:
            assert await viewer.to_end() == "clean"
            assert viewer.ids == [f"1-{n}" for n in range(1, EVENTS + 1)]
            await viewer.close()
        late = await front.open(path, headers={"last-event-id": f"1-{EVENTS - 1}"})
        assert await late.to_end() == "clean"
        assert late.ids == [f"1-{EVENTS}"]
        await late.close()
        await server.shutdown(gateway)
    await redis.aclose()
