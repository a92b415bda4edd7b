"""Calls over real connections: what is sent again, what is told. Mostly by the async client: the rules are shared."""

from __future__ import annotations

import asyncio
import socket

import pytest
from headrace_client import AsyncClient, Client, Conflict, RateLimited, ServerError, Unreachable

from tests.integration.client.tiny_server import answer, no_content, problem, reset, serving, value

REQUEST = {"request_id": "q1", "run_id": "r1", "thread_id": "t1", "state": "dispatched"}


async def test_lost_submission_is_sent_again_with_the_same_key() -> None:
    """
    1. the connection breaks before the answer to a submission
    2. then a proxy says 503
    3. the third try is answered; all three carried the same idempotency key and body
    """
    async with serving(reset, problem(503, "STARTING", "not yet"), value(202, REQUEST)) as server:
        async with AsyncClient(server.base_url, "hr_key") as client:
            assert (await client.submit("t1", "hello"))["run_id"] == "r1"
        assert len({asked.headers["idempotency-key"] for asked in server.asked}) == 1
        assert [asked.json() for asked in server.asked] == [{"message": "hello"}] * 3


async def test_sync_client_sends_again_too() -> None:
    async with serving(reset, value(202, REQUEST)) as server:

        def work() -> str:
            with Client(server.base_url, "hr_key") as client:
                return client.submit("t1", input={"a": 1}, stream_modes=["values"])["run_id"]

        assert await asyncio.to_thread(work) == "r1"
        assert server.asked[1].json() == {"input": {"a": 1}, "stream_modes": ["values"]}


async def test_key_creation_is_never_sent_again() -> None:
    """
    1. the answer to a key's creation is lost
    2. the caller is told: a second key that nobody has would be worse
    """
    async with serving(reset) as server, AsyncClient(server.base_url, "hr_key") as client:
        with pytest.raises(Unreachable):
            await client.create_key("ci", scopes=["read"])
        assert len(server.asked) == 1


async def test_conflict_is_told_with_its_reason() -> None:
    async with serving(problem(409, "IDEMPOTENCY_KEY_REUSED", "another body")) as server:
        async with AsyncClient(server.base_url, "hr_key") as client:
            with pytest.raises(Conflict, match="another body") as caught:
                await client.submit("t1", "hello", idempotency_key="k")
        assert (caught.value.status, caught.value.reason) == (409, "IDEMPOTENCY_KEY_REUSED")
        assert len(server.asked) == 1


async def test_rate_limit_with_a_long_wait_is_told() -> None:
    async with serving(problem(429, "ACTIVE_RUNS", "20 runs", retry_after="120")) as server:
        async with AsyncClient(server.base_url, "hr_key") as client:
            with pytest.raises(RateLimited) as caught:
                await client.submit("t1", "hello")
        assert caught.value.retry_after_seconds == 120
        assert len(server.asked) == 1


async def test_wait_asks_until_the_run_has_ended() -> None:
    runs = [value(200, {"run_id": "r1", "state": state}) for state in ("running", "running", "completed")]
    async with serving(*runs) as server, AsyncClient(server.base_url, "hr_key") as client:
        assert (await client.wait("r1"))["state"] == "completed"
        assert [asked.path for asked in server.asked] == ["/v1/runs/r1/wait?timeout_seconds=30.000"] * 3


async def test_wait_ends_with_its_own_time() -> None:
    async with serving(value(200, {"run_id": "r1", "state": "running"})) as server:
        async with AsyncClient(server.base_url, "hr_key") as client:
            assert (await client.wait("r1", timeout_seconds=0))["state"] == "running"
        assert len(server.asked) == 1


async def test_deleting_answers_nothing() -> None:
    async with serving(no_content) as server, AsyncClient(server.base_url, "hr_key") as client:
        await client.delete_thread("t1", cancel=True)
        assert (server.asked[0].method, server.asked[0].path) == ("DELETE", "/v1/threads/t1?cancel=true")


async def test_a_page_instead_of_json_is_an_error() -> None:
    page = answer(200, b"<p>log in</p>", "text/html")
    async with serving(page) as server, AsyncClient(server.base_url, "hr_key") as client:
        with pytest.raises(ServerError):
            await client.get_run("r1")


async def test_nobody_there_is_told_after_a_few_tries() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with AsyncClient(url, "hr_key") as client:
            with pytest.raises(Unreachable, match=url):
                await client.get_run("r1")
