"""What can go wrong for a caller of the HTTP API, typed by what the caller can do about it.

HeadraceError
 +- NotConfigured     say where the server is and with which key
 +- Unreachable       no answer: start the server, or try again
 +- BadRequest        change the call (400, 413, 422)
 +- NotAuthenticated  the key is missing, wrong, revoked or expired (401)
 +- Forbidden         the key lacks a scope (403)
 +- NotFound          missing, or another user's (404)
 +- Conflict          the object's state does not allow it, or the idempotency key was used otherwise (409)
 +- RateLimited       come back after retry_after_seconds (429)
 +- ServerError       the server's fault (5xx, and answers that are none)
 +- StreamLost        a stream could not be resumed within its bound; it can be followed again after last_event_id
 +- StreamCorrupt     a stream broke its promise: an id twice, or out of order
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class HeadraceError(Exception):
    """An error of the HTTP API or on the way to it.

    `reason` is UPPER_SNAKE and stable; `detail` is one sentence for a person.
    """

    def __init__(
        self,
        detail: str,
        *,
        status: int | None = None,
        reason: str = "",
        field: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.reason = reason
        self.field = field
        self.metadata = dict(metadata or {})
        self.retry_after_seconds = retry_after_seconds


class NotConfigured(HeadraceError):
    """Neither arguments nor environment nor a `.run/state.json` say where the server is."""


class Unreachable(HeadraceError):
    """No answer came; a keyed call may be sent again as it is."""


class BadRequest(HeadraceError):
    """The call itself is wrong; `field` names what to change."""


class NotAuthenticated(HeadraceError):
    """The API key is missing, wrong, revoked or expired."""


class Forbidden(HeadraceError):
    """The API key is valid and lacks a scope."""


class NotFound(HeadraceError):
    """Missing, or another user's: the two are not told apart."""


class Conflict(HeadraceError):
    """The object's state does not allow it, or the idempotency key was used with another body."""


class RateLimited(HeadraceError):
    """A limit is reached."""


class ServerError(HeadraceError):
    """The server, or something before it, failed."""


class StreamLost(HeadraceError):
    """A stream stayed away for longer than its bound. The run goes on without its viewers."""

    def __init__(self, detail: str, *, last_event_id: str | None) -> None:
        super().__init__(detail, reason="STREAM_LOST")
        self.last_event_id = last_event_id


class StreamCorrupt(HeadraceError):
    """A stream broke its promise."""


_BY_STATUS: Mapping[int, type[HeadraceError]] = {
    400: BadRequest,
    401: NotAuthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: BadRequest,
    422: BadRequest,
    429: RateLimited,
}


def from_response(status: int, headers: Mapping[str, str], body: bytes) -> HeadraceError:
    """Return the typed error of an answer; one that is not problem+json gets `HTTP_<status>` as its reason."""
    problem: Any = None
    if "json" in headers.get("content-type", ""):
        try:
            problem = json.loads(body)
        except ValueError:
            problem = None
    if not isinstance(problem, dict):
        problem = {}
    cls = _BY_STATUS.get(status, ServerError if status >= 500 or status < 400 else BadRequest)
    metadata = problem.get("metadata")
    return cls(
        str(problem.get("detail") or problem.get("title") or f"the server answered {status} without saying why"),
        status=status,
        reason=str(problem.get("reason") or f"HTTP_{status}"),
        field=problem.get("field"),
        metadata=metadata if isinstance(metadata, dict) else None,
        retry_after_seconds=_seconds(headers.get("retry-after")),
    )


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header is not None else None
    except ValueError:  # an HTTP date, which this server never sends
        return None
