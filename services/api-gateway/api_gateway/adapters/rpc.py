"""Errors of calls to other services, as the kit's types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import structlog
from headrace_kit.errors import ServiceError, Unauthenticated, Unavailable, from_rpc_error

log = structlog.get_logger("headrace.gateway.rpc")


@dataclass(slots=True)
class Neighbour:
    """A service behind the gateway. `met` once it was ready: before that its absence is a start, not an event."""

    name: str
    met: bool = False


def typed(error: grpc.aio.AioRpcError, *, neighbour: Neighbour) -> ServiceError:
    """Return what the caller of the HTTP API may be told.

    Our own rejected service token is our defect, not the client's; text that came without a reason is gRPC's own, names
    addresses, and is only logged.
    """
    told, service = from_rpc_error(error), neighbour.name
    if isinstance(told, Unauthenticated) and told.reason.startswith("SERVICE_TOKEN"):
        log.error("service token refused", service=service, reason=told.reason)
        return ServiceError(f"{service} does not accept this gateway", reason="SERVICE_TOKEN_REFUSED")
    if told.reason == error.code().name:
        say = log.warning if neighbour.met else log.debug
        say("call failed", service=service, status=told.reason, details=told.message)
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            # gRPC's own: a message over its limit. It will not fit later either, so it is no 429.
            return ServiceError(f"{service}: the answer is larger than a message may be", reason="ANSWER_TOO_LARGE")
        if error.code() is grpc.StatusCode.CANCELLED:
            return Unavailable(f"{service} ended the call", reason="CANCELLED")
        told.message = f"{service}: {told.reason.lower()}"
    return told


@contextmanager
def translated(neighbour: Neighbour) -> Iterator[None]:
    """Raise gRPC's errors as ServiceError."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise typed(error, neighbour=neighbour) from None
