"""What an operator sees: health, traces, a process that starts before its neighbours and stops without misleading."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from api_gateway import server
from headrace.run.v1 import run_service_pb2
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.integration.api_gateway.conftest import FIRST_KEY, House, eventually
from tests.integration.api_gateway.sse_reader import open_raw
from tests.support.fake_services import batch, serving

PARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


async def test_health(house: House) -> None:
    """
    1. PostgreSQL, run-worker and event-relay work; no provisioner listens.
    2. healthz is 200 without a key; readyz is 200 and degraded, and says by which component and why.
    """
    async with house.client("") as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        answer = await client.get("/readyz")
    body = answer.json()
    assert (answer.status_code, body["status"]) == (200, "degraded")
    assert {name: told["status"] for name, told in body["components"].items()} == {
        "postgres": "ok",
        "run_worker": "ok",
        "event_relay": "ok",
        "sandbox_provisioner": "degraded",
    }
    assert body["reasons"] == ["sandbox_provisioner: sandbox-provisioner: unavailable"]
    assert body["open_streams"] == 0


async def test_unready_while_run_worker_does_not_serve(house: House) -> None:
    """
    1. run-worker is there and says NOT_SERVING; then SERVING.
    2. readyz says 503 with the reason, then 200 within about a second.
    """
    async with serving(house.config.tokens_file, runs=house.runs) as run_server:
        await run_server.set_serving(False)
        config = house.config.model_copy(update={"run_worker_address": run_server.address})
        gateway = await server.startup(config)
        gateway.ready.set()
        async with httpx.AsyncClient(base_url=f"http://{gateway.address}") as client:
            answers = await asyncio.gather(*(client.get("/readyz") for _ in range(20)))
            assert {answer.status_code for answer in answers} == {503}
            assert "run_worker: run-worker is not serving" in answers[0].json()["reasons"]
            await run_server.set_serving(True)

            async def ready() -> bool:
                return (await client.get("/readyz")).status_code == 200

            await eventually(ready)
        await server.shutdown(gateway)


async def test_a_start_before_the_neighbours_is_quiet(house: House) -> None:
    """
    1. The gateway is asked for its readiness while run-worker is not there yet: no warning.
    2. run-worker comes, and readiness sees it; then it goes away.
    3. Now its absence is a warning that names it.
    """
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    gateway = await server.startup(house.config.model_copy(update={"run_worker_address": address}))
    gateway.ready.set()

    async with httpx.AsyncClient(base_url=f"http://{gateway.address}", timeout=15) as client:

        async def state() -> str:
            return str((await client.get("/readyz")).json()["components"]["run_worker"]["status"])

        async def works() -> bool:
            return await state() == "ok"

        async def fails() -> bool:
            return await state() != "ok"

        with structlog.testing.capture_logs() as early:
            assert await fails()
            assert (await client.get("/v1/threads", headers={"x-api-key": FIRST_KEY})).status_code == 503
        async with serving(house.config.tokens_file, runs=house.runs, listen=address):
            await eventually(works, seconds=10.0)
        with structlog.testing.capture_logs() as late:
            await eventually(fails)
    await server.shutdown(gateway)
    assert [each for each in early if each["log_level"] != "debug"] == []
    assert ("warning", "run-worker") in [(each["log_level"], each.get("service")) for each in late]


async def test_before_the_database_is_prepared(house: House) -> None:
    """
    1. A gateway starts where no PostgreSQL listens.
    2. It lives, is not ready and says why, and tells callers to come back.
    """
    dsn = type(house.config.gateway_dsn)("postgresql://nobody:secret@127.0.0.1:1/none")
    gateway = await server.startup(house.config.model_copy(update={"gateway_dsn": dsn}))
    stop = asyncio.Event()
    running = asyncio.create_task(server.run(gateway, stop))
    async with httpx.AsyncClient(base_url=f"http://{gateway.address}") as client:
        assert (await client.get("/healthz")).status_code == 200
        ready = await client.get("/readyz")
        call = await client.get("/v1/threads", headers={"x-api-key": FIRST_KEY})
    stop.set()
    await running
    await server.shutdown(gateway)
    assert ready.status_code == 503
    assert ready.json()["components"]["postgres"]["status"] == "unavailable"
    assert "secret" not in ready.text
    assert (call.status_code, call.json()["reason"]) == (503, "STARTING")
    assert call.headers["retry-after"] == "1"


async def test_traces(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    1. A browser sends its traceparent with a call and with a stream that stays open.
    2. Each is one span named by its route, child of the browser's, ended although the stream is not.
    3. run-worker gets the span as parent, and the answers carry it.
    """
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(house.gateway._http.config.app, "_tracer", provider.get_tracer("test"))
    house.runs.answers["GetRun"] = lambda _: run_service_pb2.GetRunResponse()

    async def endless(_request: Any) -> AsyncIterator[Any]:
        yield batch(("1-1", "metadata", b"{}"))
        await asyncio.Event().wait()

    house.relay.script = endless
    async with house.client() as client:
        answer = await client.get("/v1/runs/x", headers={"traceparent": PARENT})
        refused = await client.get("/v1/nothing")
    stream = await house.open("/v1/runs/x/events", headers={"traceparent": PARENT})
    await stream.until(b"1-1")
    ended = {span.name: span for span in spans.get_finished_spans()}
    await stream.close()
    assert set(ended) == {"GET /v1/runs/{run_id}", "GET", "GET /v1/runs/{run_id}/events"}
    span = ended["GET /v1/runs/{run_id}"]
    assert span.context is not None
    assert trace.format_trace_id(span.context.trace_id) == PARENT[3:35] == answer.headers["x-trace-id"]
    span_id = trace.format_span_id(span.context.span_id)
    assert answer.headers["traceparent"] == f"00-{PARENT[3:35]}-{span_id}-01"
    metadata = house.runs.calls[-1][3]
    assert metadata["traceparent"] == answer.headers["traceparent"]
    assert stream.headers["x-trace-id"] == PARENT[3:35]
    assert refused.json()["trace_id"] == refused.headers["x-trace-id"] != PARENT[3:35]
    assert dict(span.attributes or {})["http.response.status_code"] == 200


def _environment(house: House, folder: Path) -> dict[str, str]:
    config = house.config
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "OTEL_"))},
        "HEADRACE_LISTEN": "127.0.0.1:0",
        "HEADRACE_BUDGET_FILE": str(config.budget_file),
        "HEADRACE_TOKENS_FILE": str(config.tokens_file),
        "HEADRACE_SERVICE_TOKEN": config.service_token.get_secret_value(),
        "HEADRACE_DATA_DIR": str(folder),
        "HEADRACE_GATEWAY_DSN": config.gateway_dsn.get_secret_value(),
        "HEADRACE_RUN_WORKER_ADDRESS": config.run_worker_address,
        "HEADRACE_EVENT_RELAY_ADDRESS": config.event_relay_address,
        "HEADRACE_SANDBOX_PROVISIONER_ADDRESS": config.sandbox_provisioner_address,
        "HEADRACE_FIRST_KEY_SHA256": config.first_key_sha256,
    }


async def test_the_process_stops_without_misleading(house: House, tmp_path: Path) -> None:
    """
    1. `python -m api_gateway` serves a stream and is told to stop by SIGTERM.
    2. The stream's connection is broken, the process exits with 0, its spans are written.
    3. No secret is in its log, and the broken stream is one line, not a traceback.
    """

    async def endless(_request: Any) -> AsyncIterator[Any]:
        yield batch(("1-1", "metadata", b"{}"))
        await asyncio.Event().wait()

    house.relay.script = endless
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "api_gateway", env=_environment(house, tmp_path), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    lines: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(20):
            while not (lines and lines[-1]["event"] == "database ready"):
                lines.append(json.loads(await process.stderr.readline()))
            address = next(line["address"] for line in lines if line["event"] == "listening")
            stream = await open_raw(address, "/v1/runs/x/events", key=FIRST_KEY)
            await stream.until(b"1-1")
            process.send_signal(signal.SIGTERM)
            assert await stream.to_end() == "broken"
            await stream.close()
            lines += [json.loads(line) for line in (await process.stderr.read()).splitlines()]
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    ended = [line for line in lines if line["event"] == "stream ended early"]
    assert [line["reason"] for line in ended] == ["stopping"]
    assert not [line for line in lines if line["level"] in ("error", "critical")], lines
    text = json.dumps(lines)
    assert FIRST_KEY not in text
    assert house.config.service_token.get_secret_value() not in text
    (traces,) = (tmp_path / "traces").glob("api-gateway*.jsonl")
    assert "GET /v1/runs/{run_id}/events" in traces.read_text()


async def test_wrong_settings_are_told_at_once(house: House, tmp_path: Path) -> None:
    """
    1. The process starts without two settings and with a third that is wrong.
    2. It exits with 1 and one message that names all three, without their values.
    """
    environment = _environment(house, tmp_path)
    del environment["HEADRACE_GATEWAY_DSN"], environment["HEADRACE_EVENT_RELAY_ADDRESS"]
    environment["HEADRACE_FIRST_KEY_SHA256"] = "hr_secret"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "api_gateway", env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, raw = await process.communicate()
    text = raw.decode()
    assert process.returncode == 1
    assert "Traceback" not in text
    assert "hr_secret" not in text
    for name in ("GATEWAY_DSN", "EVENT_RELAY_ADDRESS", "FIRST_KEY_SHA256"):
        assert f"HEADRACE_{name}" in text
