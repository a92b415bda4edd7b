"""Keeps a synthesized `snapshot` inside what an event may be; the whole messages stay where the marker says."""

from __future__ import annotations

from typing import Any

import orjson

KEPT_CHARS = 2_000
"""What stays of a cut message's text: enough to recognize it. The run's owner cuts at the same length."""


def bounded_snapshot(data: bytes, max_bytes: int) -> bytes:
    """Return `data`, JSON of a snapshot, cut to `max_bytes`: the oldest messages first, each with a typed marker."""
    if len(data) <= max_bytes:
        return data
    snapshot: dict[str, Any] = orjson.loads(data)
    over = len(data) - max_bytes
    for message in snapshot["messages"]:
        if over <= 0:
            break
        whole = len(orjson.dumps(message))
        _cut(message, whole)
        over -= whole - len(orjson.dumps(message))
    cut = orjson.dumps(snapshot)
    if len(cut) <= max_bytes:
        return cut
    marker = {"truncated": True, "bytes": len(data), "where": "message"}
    return orjson.dumps({"messages": [], "interrupts": [], **marker})


def _cut(message: dict[str, Any], whole: int) -> None:
    content = message["content"]
    message["content"] = content[:KEPT_CHARS] if isinstance(content, str) else ""
    message["reasoning"] = ""
    message["tool_calls"] = [{**call, "args": {}} for call in message["tool_calls"]]
    message["truncated"] = {"truncated": True, "bytes": whole, "where": "message"}
