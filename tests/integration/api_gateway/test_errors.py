"""Every error as a problem: what run-worker tells, what the edge itself refuses."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from api_gateway import server
from headrace.run.v1 import run_service_pb2
from headrace_kit import errors
from headrace_kit.errors import ServiceError
from pydantic import SecretStr

from tests.integration.api_gateway.conftest import FIRST_KEY, House
from tests.integration.api_gateway.sse_reader import open_raw

_MAPPING: list[tuple[type[ServiceError], int]] = [
    (errors.InvalidArgument, 400),
    (errors.OutOfRange, 400),
    (errors.PermissionDenied, 403),
    (errors.NotFound, 404),
    (errors.AlreadyExists, 409),
    (errors.FailedPrecondition, 409),
    (errors.Aborted, 409),
    (errors.ResourceExhausted, 429),
    (errors.Unavailable, 503),
    (errors.DeadlineExceeded, 504),
    (errors.Unauthenticated, 401),
    (ServiceError, 500),
]


@pytest.mark.parametrize(("cls", "status"), _MAPPING, ids=lambda value: getattr(value, "__name__", str(value)))
async def test_what_run_worker_tells(
    house: House, client: httpx.AsyncClient, cls: type[ServiceError], status: int
) -> None:
    """
    1. run-worker answers with each status, a reason, metadata and a field.
    2. The client gets the HTTP status, and the same reason, text, metadata and field.
    3. 429 and 503 say when to come back.
    """

    def refuse(_request: Any) -> Any:
        raise cls("no: 7", reason="SOME_REASON", metadata={"n": "7"}, field="input", retry_after_seconds=2.5)

    house.runs.answers["CancelRun"] = refuse
    answer = await client.post("/v1/runs/x/cancel")
    body = answer.json()
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["status"] == status
    assert (body["reason"], body["detail"]) == ("SOME_REASON", "no: 7")
    assert (body["metadata"], body["field"]) == ({"n": "7"}, "input")
    assert body["type"] == "about:blank"
    assert body["title"]
    assert answer.headers.get("retry-after") == ("3" if status in (429, 503) else None)


async def test_an_answer_over_grpcs_limit_is_no_429(house: House, client: httpx.AsyncClient) -> None:
    """
    1. run-worker's answer is larger than a gRPC message may be: RESOURCE_EXHAUSTED, which is gRPC's own word.
    2. The client gets 500 with a reason, and is not told to come back.
    """
    large = run_service_pb2.GetThreadStateResponse(values=b"x" * (9 * 1024 * 1024))
    house.runs.answers["GetThreadState"] = lambda _request: large
    answer = await client.get("/v1/threads/x/state")
    assert (answer.status_code, answer.json()["reason"]) == (500, "ANSWER_TOO_LARGE")
    assert "retry-after" not in answer.headers


async def test_run_worker_away(house: House) -> None:
    """
    1. Nobody listens on run-worker's address.
    2. The answer is 503 with Retry-After, within seconds, and names no address.
    """
    config = house.config.model_copy(update={"run_worker_address": "127.0.0.1:1"})
    gateway = await server.startup(config)
    gateway.ready.set()
    async with House(gateway, config, house.runs, house.relay, house.database).client() as client:
        answer = await client.get("/v1/threads")
    await server.shutdown(gateway)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "127.0.0.1" not in answer.text


async def test_our_own_token_refused(house: House) -> None:
    """
    1. run-worker does not accept the gateway's service token.
    2. The client is told 500, not that its key is wrong.
    """
    config = house.config.model_copy(update={"service_token": SecretStr("another")})
    gateway = await server.startup(config)
    gateway.ready.set()
    async with House(gateway, config, house.runs, house.relay, house.database).client() as client:
        answer = await client.get("/v1/threads")
    await server.shutdown(gateway)
    assert (answer.status_code, answer.json()["reason"]) == (500, "SERVICE_TOKEN_REFUSED")


async def test_a_read_is_tried_again(house: House, client: httpx.AsyncClient) -> None:
    """
    1. run-worker says UNAVAILABLE once to a read, once to a cancel.
    2. The read is tried again and succeeds; the cancel, which is neither a read nor keyed, is told.
    """
    calls = 0

    def once(_request: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise errors.Unavailable("restarting", reason="DRAINING")
        return run_service_pb2.GetRunResponse()

    house.runs.answers["GetRun"] = once
    assert (await client.get("/v1/runs/x")).status_code == 200
    calls = 0
    house.runs.answers["CancelRun"] = once
    assert (await client.post("/v1/runs/x/cancel")).status_code == 503


async def test_unknown_route_and_method(client: httpx.AsyncClient) -> None:
    """
    1. A path that no route has is 404, also with a trailing slash and on /; a known path with another method is 405.
    2. Both are problems; 405 lists all methods of the path.
    """
    for path in ("/", "/v1/nothing", "/v1/threads/"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["reason"]) == (404, "ROUTE_NOT_FOUND"), path
    answer = await client.put("/v1/threads")
    assert (answer.status_code, answer.json()["reason"]) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    assert (await client.request("HEAD", "/v1/runs/x/events")).status_code == 405


_BAD_BODIES: list[tuple[bytes, str, str | None]] = [
    (b"{", "BODY_NOT_JSON", None),
    (b"\xff\xfe", "BODY_NOT_JSON", None),
    (b'{"message": "\\ud800"}', "BODY_NOT_JSON", None),
    (b'{"message": NaN}', "BODY_NOT_JSON", None),
    (b"[" * 100_000, "BODY_NOT_JSON", None),
    (b"[]", "BODY_NOT_AN_OBJECT", None),
    (b"null", "BODY_NOT_AN_OBJECT", None),
    (b"", "BODY_INVALID", "message"),
    (b"{}", "BODY_INVALID", "message"),
    (b'{"message": "a", "input": {}}', "BODY_INVALID", "message"),
    (b'{"message": ""}', "BODY_INVALID", "message"),
    (b'{"message": " \\n\\t"}', "BODY_INVALID", "message"),
    (b'{"message": 1}', "BODY_INVALID", "message"),
    (b'{"message": "a", "mesage": "b"}', "BODY_INVALID", "mesage"),
    (b'{"message": "a", "multitask_strategy": "later"}', "BODY_INVALID", "multitask_strategy"),
    (b'{"message": "a", "stream_modes": ["a", 1]}', "BODY_INVALID", "stream_modes.1"),
    (b'{"message": "a", "stream_subgraphs": "yes"}', "BODY_INVALID", "stream_subgraphs"),
    (b'{"message": "a", "config": []}', "BODY_INVALID", "config"),
    (b'{"message": "a", "metadata": "x"}', "BODY_INVALID", "metadata"),
    (b'{"input": ' + b"[" * 500 + b"]" * 500 + b"}", "BODY_INVALID", None),
]


@pytest.mark.parametrize(("body", "reason", "field"), _BAD_BODIES, ids=range(len(_BAD_BODIES)))
async def test_bad_bodies(house: House, client: httpx.AsyncClient, body: bytes, reason: str, field: str | None) -> None:
    """
    1. A body that is not JSON, has a wrong or unknown field, or nests too deep.
    2. 400, the field named, the secret content not repeated, and run-worker not asked.
    """
    answer = await client.post("/v1/threads/x/requests", content=body)
    assert (answer.status_code, answer.json()["reason"], answer.json()["field"]) == (400, reason, field)
    assert house.runs.calls == []


@pytest.mark.parametrize("told", [True, False])
async def test_a_body_over_the_limit(house: House, client: httpx.AsyncClient, told: bool) -> None:
    """
    1. A body of a little over 1 MiB comes with its length, and in chunks without it.
    2. 413, with the limit; a body of just under it passes to run-worker.
    """
    limit = 1_048_576

    async def chunks() -> Any:
        for _ in range(17):
            yield b" " * 65_536

    answer = await client.post("/v1/threads/x/requests", content=b" " * (limit + 1) if told else chunks())
    assert answer.status_code == 413
    assert answer.json()["metadata"] == {"limit_bytes": str(limit)}
    text = b'{"message": "' + b"x" * (limit - 15) + b'"}'
    assert (await client.post("/v1/threads/x/requests", content=text)).json()["reason"] == "THING_NOT_FOUND"
    assert len(house.runs.last("SubmitRequest").input) > limit - 100


async def test_an_announced_body_is_refused_unread(house: House) -> None:
    """
    1. A client announces a gigabyte and sends none of it.
    2. The refusal comes at once and closes the connection.
    """
    answer = await open_raw(
        house.address,
        "/v1/threads/x/requests",
        key=FIRST_KEY,
        method="POST",
        headers={"content-length": "1000000000"},
    )
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    async with asyncio.timeout(2):
        assert await answer.reader.read() == b""
    await answer.close()


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/threads?page_size=many", "page_size"),
        ("/v1/threads?page_size=-1", "page_size"),
        ("/v1/threads?page_size=0", "page_size"),
        ("/v1/threads?page_size=000", "page_size"),
        ("/v1/threads?page_size=", "page_size"),
        ("/v1/threads?page_size=1.5", "page_size"),
        ("/v1/keys?page_size=0", "page_size"),
        ("/v1/runs?state=done", "state"),
        ("/v1/runs/x/wait?timeout_seconds=61", "timeout_seconds"),
        ("/v1/runs/x/wait?timeout_seconds=nan", "timeout_seconds"),
        ("/v1/runs/x/wait?timeout_seconds=-1", "timeout_seconds"),
        ("/v1/runs/x/wait?timeout_seconds=", "timeout_seconds"),
        ("/v1/runs/x/events?modes=messages,token", "modes"),
    ],
)
async def test_bad_queries(house: House, client: httpx.AsyncClient, path: str, field: str) -> None:
    """
    1. A query parameter that cannot be meant.
    2. 400 that names it; run-worker not asked.
    """
    answer = await client.get(path)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert house.runs.calls == []


_TAKEN = {
    "GET /v1/threads": "page_size page_token",
    "POST /v1/threads": "",
    "GET /v1/threads/x": "",
    "PATCH /v1/threads/x": "",
    "DELETE /v1/threads/x": "cancel",
    "GET /v1/threads/x/messages": "page_size page_token",
    "GET /v1/threads/x/state": "",
    "GET /v1/threads/x/requests": "page_size page_token",
    "POST /v1/threads/x/requests": "after modes",
    "POST /v1/threads/x/continue": "",
    "GET /v1/requests/x": "",
    "POST /v1/requests/x/cancel": "",
    "GET /v1/requests/x/events": "",
    "GET /v1/runs": "thread_id state page_size page_token",
    "GET /v1/runs/x": "",
    "GET /v1/runs/x/result": "",
    "GET /v1/runs/x/wait": "timeout_seconds",
    "POST /v1/runs/x/cancel": "",
    "GET /v1/runs/x/events": "after modes",
    "GET /v1/agents": "page_size page_token",
    "GET /v1/keys": "page_size page_token",
    "POST /v1/keys": "",
    "DELETE /v1/keys/x": "",
}


@pytest.mark.parametrize("route", _TAKEN)
async def test_an_unknown_query_parameter(house: House, client: httpx.AsyncClient, route: str) -> None:
    """
    1. Each route gets a query parameter that it does not know.
    2. 400 that names it and lists those that it knows; nobody is asked for anything.
    """
    method, _, path = route.partition(" ")
    answer = await client.request(method, path, params={"page_sise": "5"})
    body = answer.json()
    assert (answer.status_code, body["reason"], body["field"]) == (400, "QUERY_INVALID", "page_sise")
    names = _TAKEN[route].split()
    assert body["detail"].endswith(f"allowed: {', '.join(names)}" if names else "this route takes none")
    assert house.runs.calls == []
    assert house.relay.calls == []


@pytest.mark.parametrize(("size", "asked"), [("1", 1), ("0200", 200), ("999999", 999_999), ("9" * 5_000, 1_000_000)])
async def test_a_large_page_is_cut(house: House, client: httpx.AsyncClient, size: str, asked: int) -> None:
    """
    1. A list is asked for with a size up to far beyond its maximum.
    2. It is no error: run-worker is asked for as much, and cuts it.
    """
    house.runs.answers["ListThreads"] = lambda _: run_service_pb2.ListThreadsResponse()
    assert (await client.get("/v1/threads", params={"page_size": size})).status_code == 200
    assert house.runs.last("ListThreads").page_size == asked


async def test_an_unknown_mode_is_answered_with_the_known_ones(client: httpx.AsyncClient) -> None:
    """
    1. A stream is asked for a mode that no run has.
    2. MODE_UNKNOWN lists those that there are.
    """
    body = (await client.get("/v1/runs/x/events?modes=token")).json()
    assert body["reason"] == "MODE_UNKNOWN"
    assert "'token' is none of custom, end, " in body["detail"]
    assert "messages" in body["detail"]


async def test_a_bad_idempotency_key(client: httpx.AsyncClient) -> None:
    """
    1. Idempotency keys that are empty, too long, or hold a space.
    2. 400 that names the header.
    """
    for key in ("", "a b", "x" * 201):
        answer = await client.post("/v1/threads", json={}, headers={"idempotency-key": key})
        assert (answer.status_code, answer.json()["field"]) == (400, "Idempotency-Key"), key


async def test_an_unexpected_error_is_told_without_its_text(house: House, client: httpx.AsyncClient) -> None:
    """
    1. run-worker fails with an exception of its own.
    2. The client is told 500 without the exception's text, and the gateway goes on.
    """

    def fail(_request: Any) -> Any:
        raise RuntimeError("password=hunter2")

    house.runs.answers["GetRun"] = fail
    answer = await client.get("/v1/runs/x")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert (await client.get("/healthz")).status_code == 200
