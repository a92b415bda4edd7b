"""Errors that cross a service's edge, typed by what the caller can do, and their one mapping to gRPC and back.

ServiceError
 +- InvalidArgument      change the call
 |   +- OutOfRange       the cursor is past the end
 +- Unauthenticated      say who you are
 +- PermissionDenied     ask for the scope
 +- NotFound             missing, or not yours
 +- AlreadyExists        the key was used with another body
 +- FailedPrecondition   change the object's state first
 +- Aborted              lost a race: read again, then decide
 +- ResourceExhausted    wait retry_after_seconds
 +- DeadlineExceeded     the answer took too long
 +- Unavailable          try again
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2


class ServiceError(Exception):
    """An error that may be told to a caller.

    `reason` is UPPER_SNAKE and stable; whatever the message interpolates is in `metadata` too.
    """

    status: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        metadata: Mapping[str, str] | None = None,
        field: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.field = field
        self.retry_after_seconds = retry_after_seconds


class InvalidArgument(ServiceError):
    """The call itself is wrong; `field` names what to change."""

    status = "INVALID_ARGUMENT"


class OutOfRange(InvalidArgument):
    """There is nothing behind that place."""

    status = "OUT_OF_RANGE"


class Unauthenticated(ServiceError):
    """No valid credential came with the call."""

    status = "UNAUTHENTICATED"


class PermissionDenied(ServiceError):
    """The credential is valid and not enough."""

    status = "PERMISSION_DENIED"


class NotFound(ServiceError):
    """Missing, or another user's: the two are not told apart."""

    status = "NOT_FOUND"


class AlreadyExists(ServiceError):
    """The idempotency key was used before with another body."""

    status = "ALREADY_EXISTS"


class FailedPrecondition(ServiceError):
    """The object is in a state that does not allow it."""

    status = "FAILED_PRECONDITION"


class Aborted(ServiceError):
    """Another call came first."""

    status = "ABORTED"


class ResourceExhausted(ServiceError):
    """A limit is reached; `retry_after_seconds` says when to come back."""

    status = "RESOURCE_EXHAUSTED"


class DeadlineExceeded(ServiceError):
    """The answer took longer than the caller's deadline."""

    status = "DEADLINE_EXCEEDED"


class Unavailable(ServiceError):
    """Something behind the service is away; the same call may succeed later."""

    status = "UNAVAILABLE"


_BY_STATUS: dict[str, type[ServiceError]] = {
    cls.status: cls
    for cls in (
        InvalidArgument,
        OutOfRange,
        Unauthenticated,
        PermissionDenied,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        Aborted,
        ResourceExhausted,
        DeadlineExceeded,
        Unavailable,
    )
}


def to_rpc_status(error: ServiceError, *, domain: str) -> status_pb2.Status:
    """Return the google.rpc.Status of an error, with one ErrorInfo and the details that apply."""
    details = [error_details_pb2.ErrorInfo(reason=error.reason, domain=domain, metadata=error.metadata)]
    packed = []
    if error.field is not None:
        packed.append(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
                ]
            )
        )
    if error.retry_after_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(error.retry_after_seconds * 1000))
        packed.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code_pb2.Code.Value(error.status), message=error.message)
    for detail in (*details, *packed):
        wrapped = any_pb2.Any()
        wrapped.Pack(detail)
        status.details.append(wrapped)
    return status


def from_rpc_error(error: grpc.aio.AioRpcError) -> ServiceError:
    """Return the typed error that a server told; one without ErrorInfo gets its status name as reason."""
    status = error.code().name
    reason, metadata, field, retry_after = status, {}, None, None
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            rich = status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode())
            for detail in rich.details:
                if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                    info = error_details_pb2.ErrorInfo()
                    detail.Unpack(info)
                    reason, metadata = info.reason, dict(info.metadata)
                elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                    bad = error_details_pb2.BadRequest()
                    detail.Unpack(bad)
                    field = bad.field_violations[0].field if bad.field_violations else None
                elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                    retry = error_details_pb2.RetryInfo()
                    detail.Unpack(retry)
                    retry_after = retry.retry_delay.ToMilliseconds() / 1000
    cls = _BY_STATUS.get(status, ServiceError)
    return cls(
        error.details() or status, reason=reason, metadata=metadata, field=field, retry_after_seconds=retry_after
    )
