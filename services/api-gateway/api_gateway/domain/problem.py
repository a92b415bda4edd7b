"""Errors as application/problem+json (RFC 9457): the one place where a typed error becomes an HTTP status.

InvalidArgument, OutOfRange                       400
Unauthenticated                                   401 + WWW-Authenticate
PermissionDenied                                  403
NotFound, RouteNotFound                           404
MethodNotAllowed                                  405 + Allow
AlreadyExists, Aborted, FailedPrecondition        409
BodyTooLarge                                      413
ResourceExhausted                                 429 + Retry-After
Unavailable                                       503 + Retry-After
DeadlineExceeded                                  504
anything else                                     500
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from http import HTTPStatus

import orjson
from headrace_kit.errors import ServiceError

CONTENT_TYPE = "application/problem+json"

DEFAULT_RETRY_AFTER_SECONDS = 1.0
"""Told with 429 and 503 when the service named no time: restarts and full pools pass within about that."""

_HTTP_STATUS: dict[str, int] = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ROUTE_NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "FAILED_PRECONDITION": 409,
    "BODY_TOO_LARGE": 413,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as HTTP tells it."""

    status: int
    headers: dict[str, str]
    body: bytes


def http_status(error: ServiceError) -> int:
    """Return the HTTP status of an error; 500 for one that the table does not know."""
    return _HTTP_STATUS.get(error.status, 500)


def describe(error: ServiceError, *, trace_id: str = "") -> Problem:
    """Return the problem document and headers of an error. `trace_id` lets an operator find the request again."""
    status = http_status(error)
    headers = {"content-type": CONTENT_TYPE, "cache-control": "no-store"}
    if status == 401:
        claim = "" if error.reason == "KEY_MISSING" else ', error="invalid_token"'
        headers["www-authenticate"] = f'Bearer realm="headrace"{claim}'
    elif status == 405:
        headers["allow"] = error.metadata.get("allow", "")
    elif status == 413:
        # The rest of the body was not read: the connection cannot carry another request.
        headers["connection"] = "close"
    elif status in (429, 503):
        wait = DEFAULT_RETRY_AFTER_SECONDS if error.retry_after_seconds is None else error.retry_after_seconds
        headers["retry-after"] = str(max(1, math.ceil(wait)))
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.message,
        "reason": error.reason,
        "field": error.field,
        "metadata": error.metadata,
        "trace_id": trace_id or None,
    }
    return Problem(status=status, headers=headers, body=orjson.dumps(body))
