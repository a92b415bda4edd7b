"""What a provider's answer means, and how long to wait before asking again."""

from __future__ import annotations

import pytest
from headrace_agent.errors import ModelRefused, ModelTimeout, ModelUnavailable
from headrace_agent.refusals import error_in_answer, refusal, retry_delay


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "Retry-After": "7"}, 0.25),
        ({"Retry-After": "Tue, 01 Dec 2026 00:00:10 GMT", "Date": "Tue, 01 Dec 2026 00:00:00 GMT"}, 10.0),
        ({"Retry-After": "Tue, 01 Dec 2026 00:00:00 GMT", "Date": "Tue, 01 Dec 2026 00:00:10 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    """1. A 429 with some header. 2. Its seconds, by the provider's own clock, or None."""
    error = refusal(429, headers, b"{}", "")

    assert isinstance(error, ModelRefused)
    assert error.retry_after_seconds == seconds


@pytest.mark.parametrize(
    ("body", "reason", "text"),
    [
        (b'{"error": {"message": "m", "code": "c", "type": "t"}}', "c", "m"),
        (b'{"error": {"message": "m", "type": "t"}}', "t", "m"),
        (b'[{"error": {"message": "m", "code": 400}}]', "400", "m"),
        (b'{"error": "plain"}', "", "plain"),
        (b"<html>bad</html>", "", "<html>bad</html>"),
        (b'{"message": "m", "code": "c"}', "c", "m"),
        (b"", "", ""),
    ],
)
def test_the_providers_words_in_all_their_shapes(body: bytes, reason: str, text: str) -> None:
    """1. A refusal's body as some provider writes it. 2. Its code and its words."""
    error = refusal(400, {}, body, "")

    assert isinstance(error, ModelRefused)
    assert error.reason == reason
    assert str(error).endswith(f": {text}")


def test_what_is_tried_again_and_when() -> None:
    """1. Errors of each kind. 2. Waits double; a Retry-After counts up to its limit; the rest is not tried again."""
    again = ModelUnavailable("x", status=500)

    assert 0.5 <= (retry_delay(again, 0) or 0) <= 0.625
    assert 2.0 <= (retry_delay(again, 2) or 0) <= 2.5
    assert 7.0 <= (retry_delay(ModelRefused("x", status=429, retry_after_seconds=7), 0) or 0) <= 8.75
    assert retry_delay(ModelUnavailable("x", status=503, retry_after_seconds=31), 0) is None
    assert retry_delay(ModelRefused("x", status=400), 0) is None
    assert retry_delay(ModelRefused("x", status=429, reason="insufficient_quota"), 0) is None
    assert retry_delay(ModelTimeout("x", which="first_byte"), 0) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "m", "type": "server_error"}, ModelUnavailable),
        ({"message": "m", "code": 502}, ModelUnavailable),
        ({"message": "m", "code": 429}, ModelRefused),
        ({"message": "m", "code": "content_filter"}, ModelRefused),
        ("m", ModelRefused),
    ],
)
def test_errors_inside_of_an_answer(error: object, kind: type[Exception]) -> None:
    """1. An answer turns into an error. 2. The provider's own failures may be tried again, its refusals not."""
    assert type(error_in_answer(error, "")) is kind
