"""Nobody locks everybody out: the last valid admin key cannot be revoked, not even by two who revoke at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import httpx
import pytest
from headrace_kit.errors import FailedPrecondition

from tests.integration.api_gateway.conftest import House, eventually

_ONLY_FIRST = "UPDATE api_keys SET revoked_at = CASE WHEN key_id = 'first' THEN NULL ELSE now() END"
_REVOKE = "UPDATE api_keys SET revoked_at = now() WHERE key_id = $1"
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))"


@pytest.fixture
async def admin(house: House) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the database's owner; the first key is the only valid one."""
    connection = await asyncpg.connect(house.database.admin_dsn)
    await connection.execute(_ONLY_FIRST)
    yield connection
    await connection.execute(_ONLY_FIRST)
    await connection.close()


async def test_the_last_one_stays(house: House, client: httpx.AsyncClient, admin: asyncpg.Connection) -> None:
    """
    1. Beside the first key there are a writer's, an expired admin's and a revoked admin's.
    2. Revoking the first key is 409, says how to make another, and the key goes on working.
    3. The other three may be revoked.
    """
    ids = [(await house.add_key("read", "write"))[0], (await house.add_key("admin"))[0]]
    ids.append((await house.add_key("admin", expires_at=datetime.now(UTC) - timedelta(minutes=1)))[0])
    await house.revoke(ids[1])
    refused = await client.delete("/v1/keys/first")
    body = refused.json()
    assert (refused.status_code, body["reason"]) == (409, "LAST_ADMIN_KEY")
    assert body["metadata"] == {"key_id": "first"}
    assert 'POST /v1/keys with scopes ["admin"]' in body["detail"]
    for key_id in ids:
        assert (await client.delete(f"/v1/keys/{key_id}")).status_code == 204
    assert (await client.get("/v1/keys")).status_code == 200


async def test_the_first_key_goes_when_another_is_there(
    house: House, client: httpx.AsyncClient, admin: asyncpg.Connection
) -> None:
    """
    1. The first key makes another admin key, as the refusal says, and is revoked with it.
    2. It is refused from then on; the other one is now the last and stays.
    """
    made = (await client.post("/v1/keys", json={"label": "next", "scopes": ["admin"]})).json()
    async with house.client(made["key"]) as other:
        assert (await other.delete("/v1/keys/first")).status_code == 204
        assert (await client.get("/v1/keys")).status_code == 401
        assert (await other.delete(f"/v1/keys/{made['key_id']}")).json()["reason"] == "LAST_ADMIN_KEY"
        assert (await other.get("/v1/keys")).status_code == 200


async def test_two_revokes_at_once(house: House, admin: asyncpg.Connection) -> None:
    """
    1. Two admin keys are valid; one is being revoked, and that transaction is still open.
    2. The other one's revoke waits for it instead of taking the first for valid.
    3. Once it commits, the second is refused: one valid key is left.
    """
    second, _ = await house.add_key("admin")
    store = house.gateway._keys
    transaction = admin.transaction()
    await transaction.start()
    await admin.execute(_REVOKE, "first")
    revoking = asyncio.create_task(store.revoke(second))
    watcher = await asyncpg.connect(house.database.admin_dsn)

    async def waits() -> bool:
        return bool(await watcher.fetchval(_WAITING, admin.get_server_pid()))

    try:
        await eventually(waits)
        assert not revoking.done()
    finally:
        await transaction.commit()
        await watcher.close()
    with pytest.raises(FailedPrecondition, match="last valid admin key"):
        await revoking
    assert await store.valid([second, "first"]) == {second}


async def test_each_revokes_the_other(house: House, admin: asyncpg.Connection) -> None:
    """
    1. Ten times, two admin keys are the only ones, and both are revoked at the same time.
    2. Each time exactly one revoke is refused, and exactly one key stays valid.
    """
    store = house.gateway._keys
    for _ in range(10):
        await admin.execute(_ONLY_FIRST)
        second, _key = await house.add_key("admin")
        told = await asyncio.gather(store.revoke("first"), store.revoke(second), return_exceptions=True)
        assert sorted(type(each).__name__ for each in told) == ["FailedPrecondition", "NoneType"]
        assert len(await store.valid([second, "first"])) == 1
