"""Errors as problem documents."""

from __future__ import annotations

import orjson
import pytest
from api_gateway.domain import problem
from api_gateway.errors import BodyTooLarge, MethodNotAllowed, RouteNotFound
from headrace_kit import errors
from headrace_kit.errors import ServiceError


def _all_errors() -> list[type[ServiceError]]:
    found, todo = [], [ServiceError]
    while todo:
        cls = todo.pop()
        found.append(cls)
        todo += cls.__subclasses__()
    return found


@pytest.mark.parametrize("cls", _all_errors(), ids=lambda cls: cls.__name__)
def test_every_error_has_a_status(cls: type[ServiceError]) -> None:
    """
    1. Any error of the kit's tree or the gateway's own is described.
    2. It has a 4xx or 5xx; only an error of no class is 500.
    """
    status = problem.http_status(cls("text", reason="R"))
    assert 400 <= status < 600
    assert (status == 500) == (cls is ServiceError)


@pytest.mark.parametrize(
    ("seconds", "told"), [(None, "1"), (0.0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2"), (30.0, "30")]
)
def test_retry_after_is_whole_and_not_early(seconds: float | None, told: str) -> None:
    """
    1. A refusal names a time, or none.
    2. Retry-After is in whole seconds, at least 1, never shorter than named.
    """
    error = errors.ResourceExhausted("full", reason="FULL", retry_after_seconds=seconds)
    assert problem.describe(error).headers["retry-after"] == told


def test_headers_by_status() -> None:
    """
    1. 401, 405, 413 are described.
    2. They carry what a client needs next; others do not.
    """
    missing = problem.describe(errors.Unauthenticated("m", reason="KEY_MISSING"))
    invalid = problem.describe(errors.Unauthenticated("m", reason="KEY_INVALID"))
    assert missing.headers["www-authenticate"] == 'Bearer realm="headrace"'
    assert invalid.headers["www-authenticate"] == 'Bearer realm="headrace", error="invalid_token"'
    wrong = MethodNotAllowed("m", reason="METHOD_NOT_ALLOWED", metadata={"allow": "GET"})
    assert problem.describe(wrong).headers["allow"] == "GET"
    assert problem.describe(BodyTooLarge("m", reason="R")).headers["connection"] == "close"
    assert set(problem.describe(RouteNotFound("m", reason="R")).headers) == {"content-type", "cache-control"}


def test_the_document() -> None:
    """
    1. An error with everything is described in a trace.
    2. The document has every field of RFC 9457 that applies, and ours.
    """
    error = errors.InvalidArgument("input: no", reason="BAD", metadata={"a": "b"}, field="input")
    assert orjson.loads(problem.describe(error, trace_id="ab").body) == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": "input: no",
        "reason": "BAD",
        "field": "input",
        "metadata": {"a": "b"},
        "trace_id": "ab",
    }
