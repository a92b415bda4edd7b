"""What the routes share: answers as JSON, bodies within the limit, query parameters that name themselves when wrong."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from headrace_kit.errors import InvalidArgument
from headrace_kit.ids import new_id
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api_gateway.domain import bodies, serial
from api_gateway.errors import BodyTooLarge

B = TypeVar("B", bound=bodies.Body)

PAGE_QUERY = ("page_size", "page_token")
"""Parameters of every list."""
ANY_LARGE_PAGE = 1_000_000
"""What any larger page_size is taken for: far above every list's maximum, and it fits the proto's field."""

_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,200}")


def answer(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response that nothing may store."""
    return Response(
        serial.dumps(value),
        status_code=status,
        headers={"cache-control": "no-store", **(headers or {})},
        media_type="application/json",
    )


async def read_body(request: Request, model: type[B], *, limit: int) -> B:
    """Read and check a body of at most `limit` bytes.

    Raises BodyTooLarge, before reading when the length was told; InvalidArgument.
    """
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise InvalidArgument("the client went away in the middle of its body", reason="BODY_CUT") from None
    return bodies.parse(model, bytes(body))


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is over {limit} bytes", reason="BODY_TOO_LARGE", metadata={"limit_bytes": str(limit)}
    )


def idempotency_key(request: Request) -> tuple[str, bool]:
    """Return the client's key, or one for this HTTP request alone, and whether it is the client's.

    With a key the call to run-worker is a keyed write, which may be tried again. Raises InvalidArgument.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return f"http-{new_id()}", False
    if not _IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidArgument(
            "Idempotency-Key is not 1 to 200 visible ASCII characters",
            reason="IDEMPOTENCY_KEY_INVALID",
            field="Idempotency-Key",
        )
    return key, True


def refuse_unknown_query(request: Request, known: Collection[str]) -> None:
    """Raise InvalidArgument for a query parameter that is none of `known`."""
    for name in request.query_params:
        if name not in known:
            allowed = f"allowed: {', '.join(known)}" if known else "this route takes none"
            raise InvalidArgument(
                f"{name[:64]}: unknown query parameter; {allowed}", reason="QUERY_INVALID", field=name[:64]
            )


def query_number(request: Request, name: str, *, default: float, least: float, most: float) -> float:
    """Return a number from the query.

    Raises InvalidArgument when it is none, or outside `least` to `most`.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidArgument(
            f"{name}: must be a number from {least:g} to {most:g}", reason="QUERY_INVALID", field=name
        )
    return value


def page_of(request: Request) -> tuple[int, str]:
    """Return page_size (0 when not told) and page_token.

    Raises InvalidArgument for a size below 1 or no number; one over the list's maximum is cut by whoever lists.
    """
    token, text = request.query_params.get("page_token", ""), request.query_params.get("page_size")
    if text is None:
        return 0, token
    digits = text.lstrip("0")
    if not re.fullmatch(r"[0-9]+", digits):
        raise InvalidArgument(
            "page_size: must be a whole number, at least 1", reason="QUERY_INVALID", field="page_size"
        )
    # Digits are counted first: int() refuses thousands of them.
    return int(digits) if len(digits) < len(str(ANY_LARGE_PAGE)) else ANY_LARGE_PAGE, token


def query_flag(request: Request, name: str) -> bool:
    """Return a true/false parameter, false when not told.

    Raises InvalidArgument for any other word.
    """
    text = request.query_params.get(name, "false").lower()
    if text not in ("true", "1", "false", "0"):
        raise InvalidArgument(f"{name}: must be true or false", reason="QUERY_INVALID", field=name)
    return text in ("true", "1")


def query_list(request: Request, name: str) -> list[str]:
    """Return the words of a parameter that may be repeated, or list them with commas."""
    texts = request.query_params.getlist(name)
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]
