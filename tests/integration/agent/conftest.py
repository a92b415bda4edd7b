"""A model provider over real HTTP whose answers each test writes, byte by byte where it matters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from aiohttp import web
from headrace_agent import ChatModel, close_session
from langchain_core.messages import AIMessage
from pydantic import SecretStr

KEY = "sk-test-secret-1234567890"

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


def delta(**fields: Any) -> bytes:
    return event({"id": "c1", "model": "scripted", "choices": [{"index": 0, "delta": fields}]})


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n\n"


def finish(reason: str = "stop") -> bytes:
    return event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


DONE = b"data: [DONE]\n\n"


def stream(*pieces: bytes) -> Reply:
    """Answer with these pieces, each in a write of its own."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        for piece in pieces:
            await response.write(piece)
        return response

    return reply


def status(code: int, error: Mapping[str, Any] | str = "", **headers: str) -> Reply:
    async def reply(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": error}, status=code, headers=headers)

    return reply


async def begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


class ScriptedProvider:
    """Gives its replies in order and keeps what it was asked."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.connections: set[Any] = set()
        self.url = ""

    def then(self, *replies: Reply) -> ScriptedProvider:
        self.replies.extend(replies)
        return self

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        self.connections.add(request.transport)
        return await self.replies[len(self.bodies) - 1](request)

    def model(self, **fields: Any) -> ChatModel:
        return ChatModel(model="scripted", base_url=self.url, api_key=SecretStr(KEY), **fields)


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    scripted = ScriptedProvider()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", scripted.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    scripted.url = f"http://{host}:{port}/v1"
    yield scripted
    await close_session()
    await runner.cleanup()


class RecordingMessage:
    def __init__(self, message_id: str, metadata: Mapping[str, Any], first: asyncio.Event) -> None:
        self.message_id = message_id
        self.metadata = dict(metadata)
        self.texts: list[str] = []
        self.reasonings: list[str] = []
        self.calls: list[tuple[int, str | None, str | None, str]] = []
        self.closed: AIMessage | None = None
        self._first = first

    def text(self, delta: str) -> None:
        self.texts.append(delta)
        self._first.set()

    def reasoning(self, delta: str) -> None:
        self.reasonings.append(delta)

    def tool_call(self, index: int, *, id: str | None, name: str | None, args: str) -> None:  # noqa: A002 - the port's
        self.calls.append((index, id, name, args))

    def close(self, message: AIMessage) -> None:
        self.closed = message


class RecordingSink:
    """A run's sink that keeps everything; `refusal` is what `may_call_model` raises."""

    def __init__(self) -> None:
        self.messages: list[RecordingMessage] = []
        self.first = asyncio.Event()
        self.refusal: Exception | None = None

    def open_message(self, message_id: str, metadata: Mapping[str, Any]) -> RecordingMessage:
        self.messages.append(RecordingMessage(message_id, metadata, self.first))
        return self.messages[-1]

    def may_call_model(self) -> None:
        if self.refusal is not None:
            raise self.refusal
