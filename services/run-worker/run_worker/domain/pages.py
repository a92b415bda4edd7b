"""Pages by keyset: sizes and opaque tokens that name the last row a client has seen.

Invariant: a token goes on with the list that gave it only: it carries a digest of the list's name, user and filters.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import orjson

from run_worker.domain.inputs import InputError

LIST_DEFAULT: Final = 50
LIST_MAX: Final = 200
MESSAGES_DEFAULT: Final = 100
MESSAGES_MAX: Final = 500

_MAX_TOKEN: Final = 512
_MAX_BIGINT: Final = 2**63 - 1
_FIELD: Final = "page_token"
_SCOPE_CHARS: Final = 16
"""Of a list's digest in a token: it tells lists apart, it is no secret."""


class PageTokenError(InputError):
    """The token is not one that this list gave."""

    def __init__(self) -> None:
        super().__init__(
            _FIELD, "is not one that a page of this list gave; it holds for one list with one set of filters"
        )


def scope(listed: str, uid: str, *filters: object) -> str:
    """Return the digest of a list: its name, whose it is, and the filters that a token may not change."""
    facts = [listed, uid, *(str(one) for one in filters)]
    return hashlib.sha256(orjson.dumps(facts)).hexdigest()[:_SCOPE_CHARS]


def page_size(asked: int, *, default: int, maximum: int) -> int:
    """Return how many rows to read: 0 means `default`, more than `maximum` means `maximum`."""
    if asked < 0:
        raise InputError("page_size", f"{asked} is negative")
    return min(asked or default, maximum)


def encode_time_key(within: str, at: datetime, row_id: UUID) -> str:
    """Return the token of a row ordered by time, then id; `within` is the list's scope."""
    return _encode(within, [at.isoformat(), str(row_id)])


def decode_time_key(within: str, token: str) -> tuple[datetime, UUID] | tuple[None, None]:
    """Return time and id in `token`, or nothing for the first page."""
    if not token:
        return None, None
    parts = _decode(within, token, length=2)
    try:
        at, row_id = datetime.fromisoformat(parts[0]), UUID(parts[1])
        if at.tzinfo is None:
            raise ValueError("a time without a zone")
        # Overflows for the first and last hours of the calendar, which PostgreSQL's driver would refuse later.
        return at.astimezone(UTC), row_id
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise PageTokenError() from None


def encode_number_key(within: str, number: int) -> str:
    """Return the token of a row ordered by an identity column."""
    return _encode(within, [number])


def decode_number_key(within: str, token: str) -> int:
    """Return the number in `token`; 0 for the first page."""
    if not token:
        return 0
    (number,) = _decode(within, token, length=1)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MAX_BIGINT:
        raise PageTokenError()
    return number


def encode_name_key(within: str, name: str) -> str:
    """Return the token of a row ordered by name."""
    return _encode(within, [name])


def decode_name_key(within: str, token: str) -> str:
    """Return the name in `token`; empty for the first page."""
    if not token:
        return ""
    (name,) = _decode(within, token, length=1)
    if not isinstance(name, str) or "\x00" in name:
        raise PageTokenError()
    return name


def _encode(within: str, parts: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([within, *parts])).decode().rstrip("=")


def _decode(within: str, token: str, *, length: int) -> list[Any]:
    try:
        if len(token) > _MAX_TOKEN:
            raise ValueError
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        parts = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        raise PageTokenError() from None
    if not isinstance(parts, list) or len(parts) != 1 + length or parts[0] != within:
        raise PageTokenError()
    return parts[1:]
