"""How much an answer holds: a page stops at a number of bytes, and what is too large gives way to a marker.

Invariant: every answer fits into a gRPC message (8 MiB), whatever a graph wrote. A marker is the JSON object
`{"truncated": true, "bytes": N}` in the place of the value whose JSON has N bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final

import orjson

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Of the items on a page, except that it always has one: half of what a message may hold."""
VALUE_BYTES: Final = 4 * 1024 * 1024
"""Of a message's fields together, and of a state's values."""
FIELD_BYTES: Final = 1024 * 1024
"""Of a field of a message that is over VALUE_BYTES."""
RUN_FIELD_BYTES: Final = 512 * 1024
"""Of each open-ended field of a run: four of them, its metadata (1 MiB) and a message of VALUE_BYTES are one answer."""
ANSWER_BYTES: Final = 7 * 1024 * 1024
"""Of an answer that is no page: a run, its output and its values."""


def page_length(sizes: Iterable[int]) -> int:
    """Return how many items, of these sizes, a page holds: at least one."""
    return max(1, sum(total <= PAGE_BYTES for total in accumulate(sizes)))


def marker(size: int) -> dict[str, Any]:
    """Return what stands for a value of `size` bytes that is too large to be shown."""
    return {"truncated": True, "bytes": size}


def bounded_json(text: str, *, limit: int = FIELD_BYTES, listed: bool = False) -> bytes:
    """Return JSON as it is, or the marker of one over `limit` bytes; `listed`: as the only item of an array."""
    raw = text.encode()
    if len(raw) <= limit:
        return raw
    return orjson.dumps([marker(len(raw))] if listed else marker(len(raw)))


def bounded_text(text: str, *, limit: int = FIELD_BYTES) -> str:
    """Return a text, or its beginning and how long it was when it has over `limit` bytes."""
    raw = text.encode()
    return text if len(raw) <= limit else f"{raw[: limit // 2].decode(errors='ignore')} [truncated: {len(raw)} bytes]"


def bounded_object(raw: bytes, *, limit: int = VALUE_BYTES) -> bytes:
    """Return a JSON object as it is, or with markers for its largest members, as many as bring it under `limit`."""
    if len(raw) <= limit:
        return raw
    members = {name: (orjson.dumps(value), value) for name, value in orjson.loads(raw).items()}
    left = len(raw)
    shown: dict[str, Any] = {name: value for name, (_, value) in members.items()}
    for name, (dumped, _) in sorted(members.items(), key=lambda member: -len(member[1][0])):
        if left <= limit:
            break
        shown[name] = marker(len(dumped))
        left -= len(dumped) - len(orjson.dumps(shown[name]))
    whole = orjson.dumps(shown)
    return whole if len(whole) <= limit else orjson.dumps(marker(len(raw)))
