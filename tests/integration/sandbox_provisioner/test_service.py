"""The sandbox-provisioner as its callers see it: a real process, real gRPC, a real database, no engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from headrace.sandbox.v1 import sandbox_service_pb2 as pb
from headrace.sandbox.v1 import sandbox_service_pb2_grpc as pb_grpc
from headrace_kit.auth import call_metadata
from headrace_kit.errors import from_rpc_error

from tests.integration.sandbox_provisioner.process import METADATA, TOKEN, Process, running, stalled_engine
from tests.support.servers import TestDatabase

SERVICE = pb.DESCRIPTOR.services_by_name["SandboxService"]
REFUSED = [method.name for method in SERVICE.methods if method.name != "Describe"]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
async def service(
    database: TestDatabase, budget_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Process]:
    folder = tmp_path_factory.mktemp("provisioner")
    async with running(
        folder,
        budget_path=budget_path,
        dsn=database.dsn("provisioner"),
        docker_host=f"unix://{folder}/no-engine.sock",
    ) as process:
        await process.logged("ready")
        yield process


async def call(process: Process, method: str) -> None:
    """Call any method by its name with an empty request, and read its answer to the end."""
    descriptor = SERVICE.methods_by_name[method]
    path = f"/{SERVICE.full_name}/{method}"
    if descriptor.server_streaming:
        async for _ in process.channel.unary_stream(path, bytes, bytes)(b"", metadata=METADATA, timeout=5.0):
            pass
    else:
        await process.channel.unary_unary(path, bytes, bytes)(b"", metadata=METADATA, timeout=5.0)


async def test_describe_without_an_engine(service: Process) -> None:
    """1. No engine listens.  2. Describe answers all the same: not available, why, and what to do next."""
    answer = await pb_grpc.SandboxServiceStub(service.channel).Describe(
        pb.DescribeRequest(), metadata=METADATA, timeout=5.0
    )

    assert not answer.available
    assert "No such file or directory" in answer.unavailable_reason
    assert "HEADRACE_DOCKER_HOST" in answer.unavailable_reason
    assert (answer.engine, answer.engine_version, answer.engine_id) == ("", "", "")
    assert (answer.subnets, answer.subnets_free) == (256, 0)


@pytest.mark.parametrize("method", REFUSED)
async def test_every_other_call_is_refused_with_the_reason(service: Process, method: str) -> None:
    """1. Any call but Describe.  2. FAILED_PRECONDITION, one ErrorInfo, and a message that says the next step."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(service, method)

    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    trailers = dict(caught.value.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    (packed,) = status.details
    info = error_details_pb2.ErrorInfo()
    assert packed.Unpack(info)
    assert info.reason == "SANDBOXES_UNAVAILABLE"
    assert info.domain == "sandbox-provisioner.headrace"
    assert dict(info.metadata) == {"method": method}
    assert "use agents and tools that need no sandbox" in status.message


async def test_health_tells_each_service(service: Process) -> None:
    """1. The database is migrated.  2. The server and its service are SERVING; an unknown one is NOT_FOUND."""
    assert await service.health() == SERVING
    assert await service.health(SERVICE.full_name) == SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.health("no.such.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_the_services(service: Process) -> None:
    """1. A client without our protos asks.  2. It is told every service, without a token."""
    ask = service.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    request = reflection_pb2.ServerReflectionRequest(list_services="*")
    (answer,) = [answer async for answer in ask(iter([request]), timeout=5.0)]

    names = {entry.name for entry in answer.list_services_response.service}
    assert names >= {SERVICE.full_name, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ((), "SERVICE_TOKEN_MISSING"),
        ((("authorization", f"Basic {TOKEN}"),), "SERVICE_TOKEN_MISSING"),
        (call_metadata("another-token"), "SERVICE_TOKEN_INVALID"),
    ],
)
async def test_a_call_without_our_token_is_refused(
    service: Process, metadata: tuple[tuple[str, str], ...], reason: str
) -> None:
    """1. A caller without a token, or with one that nobody owns.  2. UNAUTHENTICATED, before anything else is told."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await pb_grpc.SandboxServiceStub(service.channel).Describe(pb.DescribeRequest(), metadata=metadata, timeout=5.0)

    error = from_rpc_error(caught.value)
    assert (error.status, error.reason) == ("UNAUTHENTICATED", reason)
    assert TOKEN not in error.message


async def test_a_stalled_engine_blocks_nothing(database: TestDatabase, budget_path: Path, tmp_path: Path) -> None:
    """1. The engine's socket accepts and never answers.  2. While the probe hangs, health answers at once.
    3. Describe waits for the probe's bound and tells it.  4. SIGTERM still ends the process, with exit code 0.
    """
    async with (
        stalled_engine(tmp_path / "engine.sock") as accepted,
        running(
            tmp_path,
            budget_path=budget_path,
            dsn=database.dsn("provisioner"),
            docker_host=f"unix://{tmp_path}/engine.sock",
        ) as process,
    ):
        await asyncio.wait_for(accepted.wait(), 10.0)
        assert await process.health() in (SERVING, NOT_SERVING)
        assert not [line for line in process.lines if line["event"] == "engine"]  # the probe hangs still

        answer = await pb_grpc.SandboxServiceStub(process.channel).Describe(
            pb.DescribeRequest(), metadata=METADATA, timeout=5.0
        )
        assert "did not answer within 2 s" in answer.unavailable_reason
        assert await process.health() == SERVING
        assert await process.stop() == 0


async def test_sigterm_lets_a_call_in_flight_end(database: TestDatabase, budget_path: Path, tmp_path: Path) -> None:
    """1. A call waits for the first look at the engine.  2. SIGTERM.  3. It is answered; exit code 0."""
    async with (
        stalled_engine(tmp_path / "engine.sock"),
        running(
            tmp_path,
            budget_path=budget_path,
            dsn=database.dsn("provisioner"),
            docker_host=f"unix://{tmp_path}/engine.sock",
        ) as process,
    ):
        waiting = pb_grpc.SandboxServiceStub(process.channel).Describe(
            pb.DescribeRequest(), metadata=METADATA, timeout=10.0
        )
        await waiting.wait_for_connection()
        await process.health()  # the same connection: what was sent before this has arrived
        assert await process.stop() == 0
        assert "no container engine answers" in (await waiting).unavailable_reason
        assert process.lines[-1]["event"] == "stopped"
