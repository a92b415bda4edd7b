"""OpenAI's shapes as bytes: responses, chunks and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from headrace_loadtest.scripts import Turn

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"


def json_response(status: int, body: Any, *, retry_after: float | None = None, keep_alive: bool = True) -> bytes:
    """Return a whole HTTP response."""
    data = json.dumps(body).encode()  # escapes lone surrogates, which orjson refuses
    head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: application/json"]
    head.append(f"content-length: {len(data)}")
    if retry_after is not None:
        head.append(f"retry-after: {retry_after:g}")
    if not keep_alive:
        head.append("connection: close")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def error_body(message: str, kind: str) -> dict[str, Any]:
    """Return OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def framed(data: bytes) -> bytes:
    """Return one piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Chunks:
    """The chunks of one streamed answer; what does not change from token to token is encoded once."""

    def __init__(self, name: str, model: str) -> None:
        head = {"id": name, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._base = json.dumps(head, separators=(",", ":")).encode()[:-1]
        self._head = b"data: " + self._base + b',"choices":[{"index":0,"delta":'
        self._tail = b',"finish_reason":null}]}\n\n'

    def delta(self, delta: bytes) -> bytes:
        """Return a token's chunk from the JSON of its delta."""
        return self._head + delta + self._tail

    def last(self, finish_reason: str) -> bytes:
        """Return the chunk that tells how the answer ended."""
        return self._head + b'{},"finish_reason":%b}]}\n\n' % json.dumps(finish_reason).encode()

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """Return the chunk with the figures, which has no choices."""
        return b'data: %b,"choices":[],"usage":%b}\n\n' % (self._base, json.dumps(usage).encode())


def usage_of(turn: Turn, prompt_tokens: int) -> dict[str, Any]:
    """Return the figures of an answer."""
    completion = len(turn.deltas)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "completion_tokens_details": {"reasoning_tokens": turn.reasoning_tokens},
    }


def whole_completion(name: str, model: str, turn: Turn, prompt_tokens: int) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.tool_calls:
        message["tool_calls"] = list(turn.tool_calls)
    return {
        "id": name,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": turn.finish_reason}],
        "usage": usage_of(turn, prompt_tokens),
    }
