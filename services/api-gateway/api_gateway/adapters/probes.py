"""Health of the services behind the gateway, asked by grpc.health.v1."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace_kit.errors import Unavailable

from api_gateway.adapters.rpc import Neighbour, translated


async def require_serving(channel: grpc.aio.Channel, neighbour: Neighbour, *, timeout: float) -> None:
    """Return when the whole server behind `channel` says SERVING.

    Raises ServiceError when it does not, or does not answer in `timeout` seconds.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    with translated(neighbour):
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout)  # type: ignore[attr-defined]  # its stubs know servers only
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise Unavailable(f"{neighbour.name} is not serving", reason="NOT_SERVING")
    neighbour.met = True
