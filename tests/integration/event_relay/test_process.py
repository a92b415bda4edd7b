"""The relay as a process: it starts before its stores, tells its health, and ends its streams before it goes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from event_relay.adapters.run_views import RunViews
from event_relay.domain.book import TailBook
from event_relay.loops.health import Health
from event_relay.settings import RelaySettings
from grpc_health.v1 import health_pb2
from headrace.relay.v1 import relay_service_pb2 as pb
from headrace.relay.v1 import relay_service_pb2_grpc as pb_grpc
from headrace_contract.projection import EventId
from headrace_deploy.servers import free_port
from headrace_kit.auth import call_metadata
from headrace_kit.budget import Budget
from headrace_kit.errors import FailedPrecondition
from headrace_kit.grpc_client import open_channel
from headrace_kit.postgres import Database

from tests.integration.event_relay.world import DEADLINE_SECONDS, TOKEN, Viewing, World, changed_budget, world
from tests.support.servers import TestDatabase

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def _process(made: RelaySettings, **changes: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    address = f"127.0.0.1:{free_port()}"
    environment = {
        "PATH": os.environ["PATH"],
        "HEADRACE_LISTEN": address,
        "HEADRACE_BUDGET_FILE": str(made.budget_file),
        "HEADRACE_TOKENS_FILE": str(made.tokens_file),
        "HEADRACE_DATA_DIR": str(made.data_dir),
        "HEADRACE_RELAY_DSN": made.relay_dsn.get_secret_value(),
        "HEADRACE_REDIS_URL": made.redis_url.get_secret_value(),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "event_relay", stderr=asyncio.subprocess.PIPE, env=environment | changes
    )
    try:
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _health(channel: grpc.aio.Channel, *, until: int) -> None:
    """Watch the health of the relay until it is `until`."""
    watch = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    call = watch(health_pb2.HealthCheckRequest(service="headrace.relay.v1.RelayService"), wait_for_ready=True)
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for answer in call:
            if answer.status == until:
                break
    call.cancel()  # a watcher would hold the server up to its grace


async def test_sigterm_ends_streams_with_unavailable(relay_settings: RelaySettings, here: World) -> None:
    """1. A process follows a run. 2. SIGTERM. 3. The viewer has what was written, then UNAVAILABLE, so that it comes
    back elsewhere; the process exits 0. 4. Elsewhere it goes on by its cursor.
    """
    ids = await here.rows.running()
    writer = here.writer(ids)
    await writer.add("metadata")
    async with _process(relay_settings) as (process, address):
        channel = open_channel(address)
        await _health(channel, until=SERVING)
        viewing = Viewing(
            pb_grpc.RelayServiceStub(channel).FollowRun(
                pb.FollowRunRequest(run_id=str(ids.run_id)), metadata=call_metadata(TOKEN, uid="ada"), timeout=60
            )
        )
        viewing.start()
        await viewing.count(1)
        process.send_signal(signal.SIGTERM)
        error = await viewing.ended()
        assert error is not None
        assert (error.status, error.reason) == ("UNAVAILABLE", "RELAY_STOPPING")
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await process.wait() == 0
        await channel.close()
    await writer.add()
    assert (await here.follow(ids.run_id, after="1-1").count(1)).ids == ["1-2"]
    traces = (relay_settings.data_dir / "traces" / f"event-relay-{process.pid}.jsonl").read_text()
    assert '"headrace.follow"' in traces
    assert str(ids.run_id) in traces


async def test_a_relay_without_redis_serves_and_one_without_postgresql_does_not(relay_settings: RelaySettings) -> None:
    """1. Nothing listens where Redis should be: SERVING. 2. Nothing listens where PostgreSQL should: NOT_SERVING, and
    calls are UNAVAILABLE; the process stays.
    """
    nobody = f"127.0.0.1:{free_port()}"
    async with _process(relay_settings, HEADRACE_REDIS_URL=f"redis://{nobody}/0") as (_, address):
        channel = open_channel(address)
        await _health(channel, until=SERVING)
        await channel.close()
    async with _process(relay_settings, HEADRACE_RELAY_DSN=f"postgresql://{nobody}/none") as (process, address):
        channel = open_channel(address)
        await _health(channel, until=NOT_SERVING)
        call = pb_grpc.RelayServiceStub(channel).FollowRun(
            pb.FollowRunRequest(run_id="x"), metadata=call_metadata(TOKEN, uid="ada"), timeout=10
        )
        viewing = Viewing(call)
        viewing.start()
        error = await viewing.ended()
        assert error is not None
        assert (error.status, error.reason) == ("UNAVAILABLE", "RELAY_NOT_READY")
        assert process.returncode is None
        await channel.close()


async def test_a_replica_follows_no_more_than_it_may(
    relay_settings: RelaySettings, database: TestDatabase, budget_path: Path, tmp_path: Path
) -> None:
    """1. A relay that may follow two streams, over three shards. 2. The third is RESOURCE_EXHAUSTED with a time to come
    back. 3. One goes; there is room again.
    """
    few = changed_budget(budget_path, tmp_path / "budget.toml", {"streams_per_replica": 2})
    made = relay_settings.model_copy(update={"budget_file": few, "redis_shards": 3})
    async with world(made, admin_dsn=database.admin_dsn) as small:
        runs = [await small.rows.running() for _ in range(3)]
        for ids in runs:
            await small.writer(ids, shards=3).add("metadata")
        viewings = [await small.follow(ids.run_id).count(1) for ids in runs[:2]]
        await small.writer(runs[0], shards=3).add("custom", at=EventId(1, 2))
        await viewings[0].count(2)
        error = await small.refused(runs[2].run_id)
        assert (error.status, error.reason, error.retry_after_seconds) == (
            "RESOURCE_EXHAUSTED",
            "STREAMS_PER_REPLICA",
            1.0,
        )
        await small.stop_following()
        await small.follow(runs[2].run_id).count(1)


async def test_settings_that_are_missing_are_named_at_once(tmp_path: Path) -> None:
    """1. Start with an empty environment. 2. The process ends and names every missing variable."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "event_relay", stderr=asyncio.subprocess.PIPE, cwd=tmp_path, env={}
    )
    _, told = await process.communicate()
    assert process.returncode == 1
    for name in ("BUDGET_FILE", "TOKENS_FILE", "DATA_DIR", "RELAY_DSN", "REDIS_URL"):
        assert f"HEADRACE_{name}:" in told.decode()


async def test_a_schema_that_stays_wrong_ends_the_relay_with_both_numbers(
    database: TestDatabase, budget: Budget
) -> None:
    """1. A database without any migration. 2. It is waited for, within a bound, NOT_SERVING. 3. Then the error says
    what the code needs and what the database has.
    """
    states: list[bool] = []

    async def set_serving(serving: bool) -> None:
        states.append(serving)

    bare = Database(dsn=database.server_dsn, pool_max=1, application="test")
    await bare.open()
    book = TailBook(budget.relay, shards=1, clock=asyncio.get_running_loop().time)
    health = Health(book, check=RunViews(bare).check_schema, set_serving=set_serving, schema_wait_seconds=0.6)
    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(FailedPrecondition, match=r"runs on schema 2 .*the database has None"):
            await health.run()
    assert states == []
    await bare.close()
