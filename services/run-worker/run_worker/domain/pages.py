"""Pages by keyset: sizes and opaque tokens that name the last row a client has seen."""

from __future__ import annotations

import base64
import binascii
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


def page_size(asked: int, *, default: int, maximum: int) -> int:
    """Return how many rows to read: 0 means `default`, more than `maximum` means `maximum`."""
    if asked < 0:
        raise InputError("page_size", f"{asked} is negative")
    return min(asked or default, maximum)


def encode_time_key(at: datetime, row_id: UUID) -> str:
    """Return the token of a row ordered by time, then id."""
    return _encode([at.isoformat(), str(row_id)])


def decode_time_key(token: str) -> tuple[datetime, UUID] | tuple[None, None]:
    """Return time and id in `token`, or nothing for the first page."""
    if not token:
        return None, None
    parts = _decode(token, length=2)
    try:
        at, row_id = datetime.fromisoformat(parts[0]), UUID(parts[1])
        if at.tzinfo is None:
            raise ValueError("a time without a zone")
        # Overflows for the first and last hours of the calendar, which PostgreSQL's driver would refuse later.
        return at.astimezone(UTC), row_id
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise InputError(_FIELD, "is not one of ours") from None


def encode_number_key(number: int) -> str:
    """Return the token of a row ordered by an identity column."""
    return _encode([number])


def decode_number_key(token: str) -> int:
    """Return the number in `token`; 0 for the first page."""
    if not token:
        return 0
    (number,) = _decode(token, length=1)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MAX_BIGINT:
        raise InputError(_FIELD, "is not one of ours")
    return number


def encode_name_key(name: str) -> str:
    """Return the token of a row ordered by name."""
    return _encode([name])


def decode_name_key(token: str) -> str:
    """Return the name in `token`; empty for the first page."""
    if not token:
        return ""
    (name,) = _decode(token, length=1)
    if not isinstance(name, str) or "\x00" in name:
        raise InputError(_FIELD, "is not one of ours")
    return name


def _encode(parts: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(list(parts))).decode().rstrip("=")


def _decode(token: str, *, length: int) -> list[Any]:
    try:
        if len(token) > _MAX_TOKEN:
            raise ValueError
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        parts = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        raise InputError(_FIELD, "is not one of ours") from None
    if not isinstance(parts, list) or len(parts) != length:
        raise InputError(_FIELD, "is not one of ours")
    return parts
