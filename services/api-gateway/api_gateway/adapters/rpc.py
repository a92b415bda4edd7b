"""Errors of calls to other services, as the kit's types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import structlog
from headrace_kit.errors import ServiceError, Unauthenticated, Unavailable, from_rpc_error

log = structlog.get_logger("headrace.gateway.rpc")


def typed(error: grpc.aio.AioRpcError, *, service: str) -> ServiceError:
    """Return what the caller of the HTTP API may be told.

    Our own rejected service token is our defect, not the client's; text that came without a reason is gRPC's own, names
    addresses, and is only logged.
    """
    told = from_rpc_error(error)
    if isinstance(told, Unauthenticated) and told.reason.startswith("SERVICE_TOKEN"):
        log.error("service token refused", service=service, reason=told.reason)
        return ServiceError(f"{service} does not accept this gateway", reason="SERVICE_TOKEN_REFUSED")
    if told.reason == error.code().name:
        log.warning("call failed", service=service, status=told.reason, details=told.message)
        if error.code() is grpc.StatusCode.CANCELLED:
            return Unavailable(f"{service} ended the call", reason="CANCELLED")
        told.message = f"{service}: {told.reason.lower()}"
    return told


@contextmanager
def translated(service: str) -> Iterator[None]:
    """Raise gRPC's errors as ServiceError."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise typed(error, service=service) from None
