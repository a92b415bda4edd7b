"""Who may call what: keys, scopes, expiry, revocation, users."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from headrace.run.v1 import run_pb2, run_service_pb2

from tests.integration.api_gateway.conftest import FIRST_KEY, House
from tests.integration.api_gateway.sse_reader import open_raw


async def test_without_a_key(house: House) -> None:
    """
    1. Calls without a key, with another scheme, with a text that is no key, with a key that nobody has.
    2. Each is a 401 problem that says how to authenticate, and run-worker is not asked.
    """
    unknown = "hr_ffffffffffff_" + "b" * 43
    headers: list[dict[str, str]] = [
        {},
        {"authorization": "Basic abc"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer hello"},
        {"authorization": f"Bearer {unknown}"},
        {"x-api-key": unknown},
        {"x-api-key": "hr_' OR 1=1 --"},
    ]
    async with house.client("") as client:
        for each in headers:
            answer = await client.get("/v1/threads", headers=each)
            assert answer.status_code == 401, each
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"].startswith("Bearer realm=")
            assert answer.json()["reason"] in ("KEY_MISSING", "KEY_INVALID")
    assert house.runs.calls == []


async def test_a_stream_asks_for_a_key_first(house: House) -> None:
    """
    1. Event streams are opened without a key.
    2. They are refused with 401 and the relay is not asked.
    """
    for path in ("/v1/runs/x/events", "/v1/requests/x/events"):
        answer = await open_raw(house.address, path)
        assert answer.status == 401
        await answer.close()
    assert house.relay.calls == []


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "both"])
async def test_both_headers_carry_a_key(house: House, header: str) -> None:
    """
    1. The key comes as bearer token, as x-api-key, or behind another scheme's Authorization.
    2. run-worker is called for the key's user with its scopes.
    """
    headers = {
        "authorization": {"authorization": f"bearer {FIRST_KEY}"},
        "x-api-key": {"x-api-key": FIRST_KEY},
        "both": {"authorization": "Basic abc", "x-api-key": FIRST_KEY},
    }[header]
    house.runs.answers["ListThreads"] = lambda _: run_service_pb2.ListThreadsResponse()
    async with house.client("") as client:
        answer = await client.get("/v1/threads", headers=headers)
    assert answer.status_code == 200
    _, _, caller, _ = house.runs.calls[-1]
    assert (caller.service, caller.uid) == ("api-gateway", "local")
    assert caller.scopes == {"admin", "read", "write"}


async def test_scopes(house: House) -> None:
    """
    1. Keys with read, write and admin call a reading, a writing and an administrating route.
    2. write may read, admin may all, anything else is 403 with the scope that is missing.
    """
    house.runs.answers["ListThreads"] = lambda _: run_service_pb2.ListThreadsResponse()
    house.runs.answers["CancelRun"] = lambda _: run_service_pb2.CancelRunResponse(run=run_pb2.Run())
    expected = {"read": (200, 403, 403), "write": (200, 202, 403), "admin": (200, 202, 200), "none": (403, 403, 403)}
    for scope, statuses in expected.items():
        _, key = await house.add_key(scope, uid="bob@example.com / ü")
        async with house.client(key) as client:
            answers = [
                await client.get("/v1/threads"),
                await client.post("/v1/runs/x/cancel"),
                await client.get("/v1/keys"),
            ]
        assert tuple(answer.status_code for answer in answers) == statuses, scope
        refused = [answer.json() for answer in answers if answer.status_code == 403]
        assert all(body["reason"] == "SCOPE_MISSING" and body["metadata"]["scope"] for body in refused)
    assert house.runs.calls[-1][2].uid == "bob@example.com / ü"


async def test_an_expired_key(house: House) -> None:
    """
    1. One key expired a minute ago, one expires in a second.
    2. The first is refused; the second works, then is refused, although it was used (and remembered) just before.
    """
    house.runs.answers["ListThreads"] = lambda _: run_service_pb2.ListThreadsResponse()
    _, old = await house.add_key("read", expires_at=datetime.now(UTC) - timedelta(minutes=1))
    _, soon = await house.add_key("read", expires_at=datetime.now(UTC) + timedelta(seconds=1))
    async with house.client(old) as client:
        assert (await client.get("/v1/threads")).status_code == 401
    async with house.client(soon) as client:
        assert (await client.get("/v1/threads")).status_code == 200
        await asyncio.sleep(1.1)
        assert (await client.get("/v1/threads")).status_code == 401


async def test_keys_are_made_listed_and_revoked(house: House, client: httpx.AsyncClient) -> None:
    """
    1. An admin makes a key; it is shown once and works.
    2. The list shows its row, never the key or its digest.
    3. Revoked, it is refused at once by this replica; a second revoke changes nothing; an unknown id is 404.
    """
    house.runs.answers["ListThreads"] = lambda _: run_service_pb2.ListThreadsResponse()
    made = await client.post("/v1/keys", json={"label": "ci", "uid": "eve", "scopes": ["read"]})
    assert made.status_code == 201
    body = made.json()
    key, key_id = body["key"], body["key_id"]
    assert key.startswith(f"hr_{key_id}_")
    assert (body["uid"], body["scopes"], body["label"]) == ("eve", ["read"], "ci")
    assert (body["expires_at"], body["revoked_at"]) == (None, None)
    async with house.client(key) as other:
        assert (await other.get("/v1/threads")).status_code == 200
        assert house.runs.calls[-1][2].uid == "eve"
        listed = await client.get("/v1/keys?page_size=200")
        assert key not in listed.text
        assert key_id in [each["key_id"] for each in listed.json()["keys"]]
        assert (await client.delete(f"/v1/keys/{key_id}")).status_code == 204
        assert (await other.get("/v1/threads")).status_code == 401
    assert (await client.delete(f"/v1/keys/{key_id}")).status_code == 204
    missing = await client.delete("/v1/keys/nothing")
    assert (missing.status_code, missing.json()["reason"]) == (404, "KEY_NOT_FOUND")


async def test_keys_in_pages(client: httpx.AsyncClient) -> None:
    """
    1. With several keys, pages of two are read to the end.
    2. They hold every key once, newest first; a made-up token is 400.
    """
    for n in range(3):
        made = await client.post("/v1/keys", json={"label": f"page {n}", "expires_in_seconds": 60})
        assert made.json()["expires_at"] > made.json()["created_at"]
    whole = (await client.get("/v1/keys?page_size=200")).json()["keys"]
    paged, token = [], ""
    while token is not None:
        page = (await client.get(f"/v1/keys?page_size=2&page_token={token}")).json()
        assert len(page["keys"]) <= 2
        paged += page["keys"]
        token = page["next_page_token"]
    assert paged == whole
    assert [key["label"] for key in whole[:3]] == ["page 2", "page 1", "page 0"]
    assert (await client.get("/v1/keys?page_token=abc")).json()["field"] == "page_token"


_TOKENS: list[object] = [
    ["2026-01-01T00:00:00+00:00", "a\x00"],
    ["0001-01-01T00:00:00+14:00", "a"],
    ["9999-12-31T23:59:59-14:00", "a"],
    ["2026-01-01T00:00:00+00:00", 1],
    [["2026"], "a"],
    {"a": 1, "b": 2},
    7,
]


@pytest.mark.parametrize("told", [*_TOKENS, b"zz"], ids=str)
async def test_a_made_up_page_token(client: httpx.AsyncClient, told: object) -> None:
    """
    1. A token looks like one of ours and holds what PostgreSQL or the calendar refuses, or is none at all.
    2. It is 400 with PAGE_TOKEN_INVALID, never a defect.
    """
    token = told.decode() if isinstance(told, bytes) else json.dumps(told).encode().hex()
    body = (await client.get("/v1/keys", params={"page_token": token})).json()
    assert (body["status"], body["reason"], body["field"]) == (400, "PAGE_TOKEN_INVALID", "page_token")


async def test_a_key_id_that_no_key_can_have(client: httpx.AsyncClient) -> None:
    """
    1. A key is revoked by an id with a NUL, which PostgreSQL does not take.
    2. It is not found, like any other unknown one.
    """
    assert (await client.delete("/v1/keys/a%00b")).json()["reason"] == "KEY_NOT_FOUND"


async def test_the_first_key_stays_revoked(house: House) -> None:
    """
    1. The first key is revoked, and the gateway prepares its database again, as after a restart.
    2. The key stays revoked; another first key takes its place and works.
    """
    store = house.gateway._keys
    digest = house.config.first_key_sha256
    await house.revoke("first")
    await store.prepare(first_key_sha256=digest, first_key_uid="local")
    assert await store.find(bytes.fromhex(digest)) is None
    await store.prepare(first_key_sha256="ab" * 32, first_key_uid="new")
    found = await store.find(bytes.fromhex("ab" * 32))
    assert found is not None
    assert (found.uid, found.key_id) == ("new", "first")
    await store.prepare(first_key_sha256=digest, first_key_uid="local")
    assert await store.find(bytes.fromhex(digest)) is not None
