"""JSON as this service stores and publishes it: encoded once, and free of what PostgreSQL or a browser would refuse.

Invariant: NUL and lone surrogates never get past here; each becomes U+FFFD. NaN and infinities become null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

_REFUSED: Final = re.compile("[\x00\ud800-\udfff]")
_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z
_NUL: Final = b"\\u0000"

MAX_DEPTH: Final = 64
"""Levels of nesting that `cleaned` follows; deeper ones become their text."""


def clean_text(text: str) -> str:
    """Return `text` with NUL and lone surrogates replaced by U+FFFD."""
    return _REFUSED.sub("�", text) if _REFUSED.search(text) else text


def cleaned(value: Any, depth: int = 0) -> Any:
    """Return a copy of plain JSON data in which every text, keys too, is clean."""
    if isinstance(value, str):
        return clean_text(value)
    if depth >= MAX_DEPTH:
        return clean_text(str(value))
    if isinstance(value, Mapping):
        return {clean_text(str(key)): cleaned(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item, depth + 1) for item in value]
    return value


def plain(value: Any) -> Any:
    """Return what JSON can hold for objects that it cannot: models by their fields, sets as lists, else their text.

    Bytes become their length only: they are content that no event carries.
    """
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": len(value)}
    return clean_text(str(value))


def _plain_tree(value: Any, default: Callable[[Any], Any], depth: int = 0) -> Any:
    if depth >= MAX_DEPTH:
        return clean_text(str(value))
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        # orjson refuses integers over 64 bits; a reader gets them as text rather than rounded.
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, str):
        return clean_text(str(value))
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _plain_tree(item, default, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_tree(item, default, depth + 1) for item in value]
    return _plain_tree(default(value), default, depth + 1)


def json_bytes(value: Any, default: Callable[[Any], Any] = plain) -> bytes:
    """Encode `value` once; never raises for content: what JSON lacks goes through `default` or becomes text."""
    try:
        encoded = orjson.dumps(value, default=default, option=_OPTIONS)
    except (TypeError, RecursionError):
        # The slow way, for the rare value: surrogates, huge integers, odd keys, too deep.
        return orjson.dumps(_plain_tree(value, default), default=plain, option=_OPTIONS)
    if _NUL in encoded:
        return orjson.dumps(cleaned(orjson.loads(encoded)), option=_OPTIONS)
    return encoded


def json_text(value: Any, default: Callable[[Any], Any] = plain) -> str:
    """Encode `value` as text, for a jsonb parameter."""
    return json_bytes(value, default).decode()
