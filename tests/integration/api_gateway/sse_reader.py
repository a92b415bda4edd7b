"""A bare HTTP/1.1 client over a socket: it sees chunks, the final one or its absence, which libraries hide."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

WAIT_SECONDS = 10.0


@dataclass
class RawResponse:
    """A response being read. `ending` is `clean` after the final chunk, `broken` after an end without it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ending: str = ""

    async def chunk(self) -> bytes:
        """The next chunk, empty at the end."""
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
                data = (await self.reader.readexactly(size + 2))[:-2]
            except (asyncio.IncompleteReadError, ConnectionError):
                self.ending = "broken"
                return b""
        if not size:
            self.ending = "clean"
        self.body += data
        return data

    async def until(self, text: bytes) -> bytes:
        """Read until the body holds `text`."""
        while text not in self.body:
            if not await self.chunk() and self.ending:
                raise AssertionError(f"{self.ending} before {text!r}: {self.body!r}")
        return self.body

    async def to_end(self) -> str:
        """Read all; return the kind of end."""
        while not self.ending:
            await self.chunk()
        return self.ending

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    @property
    def frames(self) -> list[bytes]:
        """The body's frames without comments."""
        return [part for part in self.body.split(b"\n\n") if part and not part.startswith(b":")]

    @property
    def ids(self) -> list[str]:
        """The ids in order of arrival."""
        lines = [line for part in self.frames for line in part.split(b"\n")]
        return [line[4:].decode() for line in lines if line.startswith(b"id: ")]


async def open_raw(
    address: str,
    path: str,
    *,
    key: str = "",
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> RawResponse:
    """Send a request and read the answer's head."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"{method} {path} HTTP/1.1", f"host: {address}"]
    if key:
        lines.append(f"authorization: Bearer {key}")
    if body:
        lines.append(f"content-length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    response = RawResponse(reader, writer)
    async with asyncio.timeout(WAIT_SECONDS):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        response.status = int(head[0].split(" ")[1])
        response.headers = {n.lower(): v for n, v in (line.split(": ", 1) for line in head[1:] if line)}
        if "content-length" in response.headers:
            response.body = await reader.readexactly(int(response.headers["content-length"]))
            response.ending = "clean"
        elif response.status == 204:
            response.ending = "clean"
    return response
