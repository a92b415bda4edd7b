"""A tiny real HTTP server that answers as the test says, connection by connection, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

Reply = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class TinyServer:
    """Answers request n with reply n; behind the last one the last one answers again."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = replies
        self.asked: list[Asked] = []
        self.base_url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            asked = Asked(method, path, headers, body)
            self.asked.append(asked)
            await self.replies[min(len(self.asked), len(self.replies)) - 1](asked, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serving(*replies: Reply) -> AsyncIterator[TinyServer]:
    tiny = TinyServer(*replies)
    server = await asyncio.start_server(tiny.handle, "127.0.0.1", 0)
    tiny.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tiny
    finally:
        server.close()


def answer(status: int, body: bytes, kind: str, **headers: str) -> Reply:
    async def reply(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} Status", f"content-type: {kind}", f"content-length: {len(body)}"]
        lines += ["connection: close"] + [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return reply


def value(status: int, body: Any, **headers: str) -> Reply:
    return answer(status, json.dumps(body).encode(), "application/json", **headers)


def problem(status: int, reason: str, detail: str, **headers: str) -> Reply:
    body = json.dumps({"status": status, "reason": reason, "detail": detail}).encode()
    return answer(status, body, "application/problem+json", **headers)


async def no_content(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")


async def reset(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Break the connection before any answer."""
    _abort(writer)


def stream(*events: tuple[str | None, str, Any], ending: str = "clean", raw: bytes = b"") -> Reply:
    """Send events, then end: `clean` (final chunk), `cut` (EOF inside the body), `reset` (RST)."""

    async def reply(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for data in [b": heartbeat\n\n", *map(frame, events), raw]:
            if data:
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()
        if ending == "clean":
            writer.write(b"0\r\n\r\n")
        elif ending == "reset":
            await asyncio.sleep(0.05)  # the client reads what was sent; a reset may overtake it otherwise
            _abort(writer)

    return reply


def frame(event: tuple[str | None, str, Any]) -> bytes:
    event_id, name, data = event
    line = f"id: {event_id}\n" if event_id else ""
    return f"{line}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _abort(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends RST
    writer.transport.abort()
