"""What a provider's "no" means: the typed error of a status or of an error object, and whether to try again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from headrace_agent.errors import ModelError, ModelRefused, ModelTimeout, ModelUnavailable
from headrace_agent.text import clean

RETRY_AFTER_SECONDS_MAX = 30.0
"""A longer Retry-After is told to the caller instead of waited for: it would hold a run's slot."""

BACK_OFF_SECONDS = 0.5
"""First wait between tries; doubles, with jitter."""

PROVIDER_TEXT_MAX = 500
"""How many characters of the provider's own words an error carries."""

TRY_AGAIN_STATUSES = frozenset({408, 409, 425, 429})
"""Refusals that a later try may not meet; 5xx are tried again as well."""

USED_UP = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""429 that no waiting helps against (OpenAI's codes)."""

UNAVAILABLE_WORDS = ("server_error", "internal", "overloaded", "unavailable", "timeout")
"""What providers call their own failures when these come inside a stream, without a status."""


def refusal(status: int, headers: Mapping[str, str], body: bytes, secret: str) -> ModelError:
    """Return the error of an answer whose status is not 200; `secret` is cut out of the provider's words."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = body.decode(errors="replace")
    # Some gateways wrap the object into a list.
    told = told[0] if isinstance(told, list) and told else told
    reason, text = _words(told.get("error", told) if isinstance(told, dict) else told, secret)
    after = _retry_after(headers)
    message = f"HTTP {status}{f' {reason}' if reason else ''}: {text}"
    if status >= 500:
        return ModelUnavailable(f"the model provider failed: {message}", status=status, retry_after_seconds=after)
    return ModelRefused(
        f"the model provider refused: {message}", status=status, reason=reason, retry_after_seconds=after
    )


def error_in_answer(error: Any, secret: str) -> ModelError:
    """Return the error of an `error` object inside of an answer that began well."""
    reason, text = _words(error, secret)
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) else None
    kind = f"{reason} {error.get('type', '')}".lower() if isinstance(error, dict) else ""
    if (status is not None and status >= 500) or (status is None and any(word in kind for word in UNAVAILABLE_WORDS)):
        return ModelUnavailable(f"the model provider failed: {reason or status}: {text}", status=status)
    return ModelRefused(f"the model provider refused: {reason or status}: {text}", status=status, reason=reason)


def _words(error: Any, secret: str) -> tuple[str, str]:
    """Return the provider's code (or type) and its message, without the key that some providers quote."""
    if isinstance(error, dict):
        reason, text = str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    else:
        reason, text = "", str(error or "")
    if secret:
        reason, text = reason.replace(secret, "***"), text.replace(secret, "***")
    return clean(reason)[:100], clean(text)[:PROVIDER_TEXT_MAX]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return seconds from `retry-after-ms` or `Retry-After` (seconds or a date), whatever of them can be read."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return max(0.0, float(milliseconds) / 1000)
        value = headers.get("Retry-After")
        if value is None:
            return None
        if value.replace(".", "", 1).isdigit():
            return float(value)
        date = parsedate_to_datetime(value)
        return max(0.0, date.timestamp() - parsedate_to_datetime(headers["Date"]).timestamp())
    except (ValueError, KeyError):
        return None


def retry_delay(error: ModelError, tries: int) -> float | None:
    """Return how long to wait before the next try, or None if there should be none."""
    if isinstance(error, ModelTimeout):
        return None
    if isinstance(error, ModelRefused):
        if error.status not in TRY_AGAIN_STATUSES or error.reason in USED_UP:
            return None
        after = error.retry_after_seconds
    else:
        after = error.retry_after_seconds if isinstance(error, ModelUnavailable) else None
    if after is None:
        after = BACK_OFF_SECONDS * 2**tries
    return after * random.uniform(1.0, 1.25) if after <= RETRY_AFTER_SECONDS_MAX else None
