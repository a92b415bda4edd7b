"""One SSE response, written straight to the ASGI server.

Invariant: the response is completed only after its source ended by itself (`end` was written). Whatever else ends it
leaves it incomplete, and the server then closes the connection without the final chunk, so that no client takes a
dropped stream for a finished one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import structlog
from headrace_kit.errors import OutOfRange, ServiceError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api_gateway.domain.frames import HEARTBEAT
from api_gateway.domain.keys import Principal
from api_gateway.domain.registry import OpenStream, StreamRegistry

HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    # nginx would otherwise hold events back until its buffer is full.
    "x-accel-buffering": "no",
}

log = structlog.get_logger("headrace.gateway.streams")


@dataclass(frozen=True, slots=True)
class Source:
    """What a stream sends: pieces of whole frames, empty ones meaning nothing yet, until the generator returns."""

    chunks: AsyncGenerator[bytes, None]
    headers: Mapping[str, str] = field(default_factory=dict)


class EventStream(Response):
    """Holds a place in the register, opens the source, and relays it with heartbeats until one of four ends.

    The four: the source returns (completed), the client goes, the register breaks the stream, the source fails.
    """

    def __init__(
        self,
        streams: StreamRegistry,
        principal: Principal,
        begin: Callable[[], Awaitable[Source]],
        *,
        heartbeat_seconds: float,
    ) -> None:
        """Prepare; `begin` runs with the place held, and its errors, like those of the first chunk, answer as usual."""
        super().__init__()
        self._streams = streams
        self._principal = principal
        self._begin = begin
        self._heartbeat_seconds = heartbeat_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream."""
        with self._streams.open(self._principal) as stream:
            source = await self._begin()
            async with aclosing(source.chunks) as chunks:
                try:
                    first = await anext(chunks, b"")
                except OutOfRange:
                    # Nothing is behind that cursor, ever: the status that makes an EventSource stop.
                    await Response(status_code=204)(scope, receive, send)
                    return
                headers = [(k.encode(), v.encode()) for k, v in {**HEADERS, **source.headers}.items()]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                reason = await self._relay(first, chunks, stream, receive, send)
        if reason:
            log.info("stream ended early", path=scope["path"], reason=reason)

    async def _relay(
        self, first: bytes, chunks: AsyncGenerator[bytes, None], stream: OpenStream, receive: Receive, send: Send
    ) -> str:
        """Run until one of the four ends; return why it was not the first of them, or nothing."""
        pump = asyncio.create_task(_pump(first, chunks, send), name="sse pump")
        gone = asyncio.create_task(_disconnected(receive), name="sse disconnect")
        beats = asyncio.create_task(_heartbeats(send, self._heartbeat_seconds), name="sse heartbeat")
        tasks = (pump, gone, beats)
        try:
            ends: set[asyncio.Future[Any]] = {*tasks, stream.broken}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # All of them before the source is closed: a generator cannot be closed while it is being awaited.
            for task in tasks:
                task.cancel()
            pumped, left, _ = await asyncio.gather(*tasks, return_exceptions=True)
        if pumped is None:
            return ""
        if left is None:
            return "client_gone"
        if stream.broken.done():
            return stream.broken.result()
        if isinstance(pumped, ServiceError):
            return pumped.reason
        log.error("stream failed", exc_info=pumped)
        return "INTERNAL"


async def _pump(first: bytes, chunks: AsyncGenerator[bytes, None], send: Send) -> None:
    if first:
        await send({"type": "http.response.body", "body": first, "more_body": True})
    async for chunk in chunks:
        if chunk:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _heartbeats(send: Send, seconds: float) -> None:
    # On a schedule of their own, busy or not: proxies and clients measure silence, not work.
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due = max(due + seconds, loop.time())
        await asyncio.sleep(due - loop.time())
        await send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})
