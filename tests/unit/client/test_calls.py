"""When a call is sent again, and what an error answer becomes."""

from __future__ import annotations

import json

import pytest
from headrace_client import calls, errors


def test_submission_takes_exactly_one_input() -> None:
    assert calls.submission("hi", None, {"durability": None}) == {"message": "hi"}
    assert calls.submission(None, {"a": 1}, {"durability": "sync"}) == {"input": {"a": 1}, "durability": "sync"}
    for message, value in ((None, None), ("hi", {"a": 1})):
        with pytest.raises(ValueError, match="exactly one"):
            calls.submission(message, value, {})


def test_every_submission_has_its_own_key() -> None:
    keys = {calls.submit("t", {}, None).headers["Idempotency-Key"] for _ in range(10)}
    assert len(keys) == 10
    assert calls.submit("t", {}, "mine").headers["Idempotency-Key"] == "mine"


def test_ids_cannot_change_the_path() -> None:
    assert calls.run("../keys", "/result").path == "/v1/runs/..%2Fkeys/result"


def test_keyed_call_is_repeated_unkeyed_is_not() -> None:
    lost = errors.Unreachable("reset")
    assert calls.retry_delay(calls.submit("t", {}, None), lost, 1) is not None
    assert calls.retry_delay(calls.create_key("", ["read"], None, None), lost, 1) is None


def test_repeats_are_bounded() -> None:
    assert calls.retry_delay(calls.run("r"), errors.Unreachable("reset"), calls.TRIES) is None


def test_long_retry_after_is_told_to_the_caller() -> None:
    soon = errors.RateLimited("limit", status=429, retry_after_seconds=2)
    late = errors.RateLimited("limit", status=429, retry_after_seconds=60)
    assert calls.retry_delay(calls.run("r"), soon, 1) == 2
    assert calls.retry_delay(calls.run("r"), late, 1) is None


def test_refusals_are_not_repeated() -> None:
    for error in (errors.BadRequest("x", status=400), errors.ServerError("x", status=500)):
        assert calls.retry_delay(calls.run("r"), error, 1) is None


@pytest.mark.parametrize(
    ("status", "cls"),
    [
        (400, errors.BadRequest),
        (401, errors.NotAuthenticated),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (405, errors.BadRequest),
        (409, errors.Conflict),
        (413, errors.BadRequest),
        (429, errors.RateLimited),
        (500, errors.ServerError),
        (504, errors.ServerError),
    ],
)
def test_problem_json_becomes_a_typed_error(status: int, cls: type[errors.HeadraceError]) -> None:
    problem = {"title": "T", "detail": "d", "reason": "R", "field": "f", "metadata": {"a": "b"}}
    headers = {"content-type": "application/problem+json", "retry-after": "2.5"}
    error = errors.from_response(status, headers, json.dumps(problem).encode())
    assert type(error) is cls
    assert (error.status, error.detail, error.reason, error.field) == (status, "d", "R", "f")
    assert (error.metadata, error.retry_after_seconds) == ({"a": "b"}, 2.5)


def test_a_proxys_page_becomes_an_error_too() -> None:
    error = errors.from_response(502, {"content-type": "text/html"}, b"<h1>Bad Gateway</h1>")
    assert (type(error), error.reason) == (errors.ServerError, "HTTP_502")
    assert type(errors.from_response(200, {"content-type": "text/html"}, b"<p>log in</p>")) is errors.ServerError
