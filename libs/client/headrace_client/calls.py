"""The routes of the HTTP API as data, and when a call may be sent again. Shared by the sync and the async client."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from headrace_client.errors import HeadraceError, RateLimited, ServerError, Unreachable

TRIES = 4
"""Times a call is sent in all: with the delays between them a restart of the gateway is bridged."""
FIRST_DELAY_S = 0.2
LAST_DELAY_S = 5.0
"""Back-off grows from the first to the last, each shortened by a random share so that clients do not come together."""
RETRY_AFTER_MAX_S = 10.0
"""A 429 or 503 that asks for more is told to the caller instead of slept through."""
PAGE_MAX = 200
"""The most that one page of most lists holds."""
RETRIED_STATUS = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP call. `repeatable`: sending it twice does what sending it once does."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    answer_within_s: float = 15.0
    """More than the gateway's own deadline (10 s), so that its answer and not our impatience is told."""


def delay(attempt: int) -> float:
    """Return the jittered seconds before try `attempt` + 1, counted from 1."""
    return float(min(LAST_DELAY_S, FIRST_DELAY_S * 2 ** min(attempt - 1, 16)) * random.uniform(0.5, 1.0))


def retry_delay(call: Call, error: HeadraceError, attempt: int) -> float | None:
    """Return the seconds to wait before the call is sent again, or None when it is not to be."""
    if attempt >= TRIES:
        return None
    if isinstance(error, Unreachable):
        return delay(attempt) if call.repeatable else None
    if isinstance(error, RateLimited | ServerError) and error.status in RETRIED_STATUS:
        wanted = error.retry_after_seconds or 0.0
        told_not_to_wait = wanted > RETRY_AFTER_MAX_S
        refused = error.status == 429  # nothing was done, so even an unkeyed call may come again
        return None if told_not_to_wait or not (call.repeatable or refused) else max(wanted, delay(attempt))
    return None


def create_thread(
    agent: str, title: str | None, metadata: Mapping[str, Any] | None, thread_id: str | None, key: str | None
) -> Call:
    """POST /v1/threads."""
    body = _given(agent=agent, title=title, metadata=metadata, thread_id=thread_id)
    return Call("POST", "/v1/threads", json=body, headers=_keyed(key))


def thread(thread_id: str, method: str = "GET", suffix: str = "", **rest: Any) -> Call:
    """Return a call on one thread."""
    return Call(method, f"/v1/threads/{_part(thread_id)}{suffix}", **rest)


def run(run_id: str, suffix: str = "", method: str = "GET", **rest: Any) -> Call:
    """Return a call on one run."""
    return Call(method, f"/v1/runs/{_part(run_id)}{suffix}", **rest)


def request(request_id: str, suffix: str = "", method: str = "GET", **rest: Any) -> Call:
    """Return a call on one request."""
    return Call(method, f"/v1/requests/{_part(request_id)}{suffix}", **rest)


def submit(thread_id: str, body: Mapping[str, Any], key: str | None) -> Call:
    """POST /v1/threads/{thread_id}/requests."""
    return thread(thread_id, "POST", "/requests", json=body, headers=_keyed(key))


def wait(run_id: str, seconds: float) -> Call:
    """GET /v1/runs/{run_id}/wait."""
    return run(run_id, "/wait", params={"timeout_seconds": f"{seconds:.3f}"}, answer_within_s=seconds + 15.0)


def events(run_id: str, modes: Sequence[str] | None) -> Call:
    """GET /v1/runs/{run_id}/events."""
    return run(run_id, "/events", params={"modes": ",".join(modes)} if modes else {})


def submission(
    message: str | None,
    input: Any,  # noqa: A002 - the API's own word
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the body of a submission.

    Raises ValueError unless exactly one of `message` and `input` is given.
    """
    if (message is None) == (input is None):
        raise ValueError("give exactly one of message and input")
    return _given(message=message, input=input, **options)


def page(path: str, page_size: int | None, page_token: str | None, **filters: str | None) -> Call:
    """Return a call for one page of a list."""
    params = _given(page_size=page_size, page_token=page_token, **filters)
    return Call("GET", path, params={name: str(value) for name, value in params.items()})


def create_key(label: str, scopes: Sequence[str], uid: str | None, expires_in_seconds: int | None) -> Call:
    """POST /v1/keys; not repeatable, since a lost answer would leave a key that nobody has."""
    body = _given(label=label, scopes=list(scopes), uid=uid, expires_in_seconds=expires_in_seconds)
    return Call("POST", "/v1/keys", json=body, repeatable=False)


def revoke_key(key_id: str) -> Call:
    """DELETE /v1/keys/{key_id}."""
    return Call("DELETE", f"/v1/keys/{_part(key_id)}")


def _keyed(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid.uuid4())}


def _part(value: str) -> str:
    return quote(value, safe="")


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
