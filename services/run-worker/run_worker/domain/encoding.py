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
        return text_of(value)
    if isinstance(value, Mapping):
        return {text_of(key): cleaned(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item, depth + 1) for item in value]
    return value


def plain(value: Any) -> Any:
    """Return what JSON can hold for objects that it cannot: models by their fields, sets as lists, else their text.

    Bytes become their length only: they are content that no event carries.
    """
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        try:
            return dump()
        except Exception:  # noqa: BLE001  # the author's serializers: the text has to do
            return text_of(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": len(value)}
    return text_of(value)


def text_of(value: Any) -> str:
    """Return the text of any object; a typed marker if it has none, because its own code fails or it is too deep."""
    try:
        return clean_text(str(value))
    except Exception as error:  # noqa: BLE001  # the author's __str__ may raise whatever it likes
        return f"<{type(value).__name__} without a text: {type(error).__name__}>"


def _plain_tree(value: Any, default: Callable[[Any], Any], depth: int = 0, above: frozenset[int] = frozenset()) -> Any:
    """`above` are the ids of the containers that hold `value`: one that holds itself becomes its text there."""
    if depth >= MAX_DEPTH or id(value) in above:
        return text_of(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        # orjson refuses integers over 64 bits; a reader gets them as text rather than rounded.
        return value if -(2**63) <= value < 2**64 else text_of(value)
    if isinstance(value, str):
        return text_of(value)
    within = above | {id(value)}
    if isinstance(value, Mapping):
        return {text_of(key): _plain_tree(item, default, depth + 1, within) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_tree(item, default, depth + 1, within) for item in value]
    try:
        told = default(value)
    except Exception:  # noqa: BLE001  # as above
        told = text_of(value)
    return _plain_tree(told, default, depth + 1, within)


def json_bytes(value: Any, default: Callable[[Any], Any] = plain) -> bytes:
    """Encode `value` once; never raises for content: what JSON lacks goes through `default` or becomes text."""
    try:
        encoded = orjson.dumps(value, default=default, option=_OPTIONS)
    except Exception:  # noqa: BLE001  # a TypeError of orjson, or whatever the content's own code raises
        return _slowly(value, default)
    if _NUL in encoded:
        try:
            return orjson.dumps(cleaned(orjson.loads(encoded)), option=_OPTIONS)
        except ValueError:
            # orjson reads 1,024 levels, and writes more.
            return _slowly(value, default)
    return encoded


def _slowly(value: Any, default: Callable[[Any], Any]) -> bytes:
    """Encode the rare value: surrogates, huge integers, odd keys, too deep, or with code that raises."""
    try:
        return orjson.dumps(_plain_tree(value, default), default=plain, option=_OPTIONS)
    except Exception as error:  # noqa: BLE001  # one value must not fail a run
        marker = {"unencodable": True, "type": type(value).__name__, "error": type(error).__name__}
        return orjson.dumps(marker)


def json_text(value: Any, default: Callable[[Any], Any] = plain) -> str:
    """Encode `value` as text, for a jsonb parameter."""
    return json_bytes(value, default).decode()
