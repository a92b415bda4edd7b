"""CPU per streamed token of the chat model under a sink: read, parse, push; the provider is a process of its own.

`python loadtest/benchmarks/chat_model_token_cost.py [--streams 100] [--tokens 400] [--rate 20]` prints microseconds of
this process's CPU per token, paced (each token alone in its packet) and in a burst.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import uvloop
from headrace_agent import ChatModel, close_session
from headrace_agent.sink import current_sink
from langchain_core.messages import AIMessage

TOKEN = (
    b'data: {"id":"chatcmpl-1234567890","object":"chat.completion.chunk","created":1767225600,"model":"scripted",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    """Return one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def serve(ready: Connection, tokens: int, rate: float) -> None:
    """Serve streams of `tokens` tokens at `rate` a second each (0 means at once) until the process is ended."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                )
                await reader.readexactly(length)
                writer.write(HEAD)
                begun = time.monotonic()
                for number in range(tokens):
                    if rate and (wait := begun + number / rate - time.monotonic()) > 0:
                        await asyncio.sleep(wait)
                    writer.write(chunked(TOKEN))
                writer.write(chunked(END) + b"0\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=2048)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    uvloop.run(main())


class CountingSink:
    """Does what the cheapest run's sink would: append."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def open_message(self, message_id: str, metadata: Mapping[str, Any]) -> CountingSink:
        """Use one list for every message."""
        return self

    def may_call_model(self) -> None:
        """Allow it."""

    def text(self, delta: str) -> None:
        """Keep the piece."""
        self.texts.append(delta)

    def reasoning(self, delta: str) -> None:
        """Drop it."""

    def tool_call(self, index: int, *, id: str | None, name: str | None, args: str) -> None:  # noqa: A002 - the port's
        """Drop it."""

    def close(self, message: AIMessage) -> None:
        """Drop it."""


async def measure(url: str, streams: int) -> tuple[int, float, float]:
    """Return tokens, CPU seconds and wall seconds of `streams` calls at once."""
    sink = CountingSink()
    current_sink.set(sink)
    model = ChatModel(model="scripted", base_url=url)
    await model.ainvoke("warm up")
    sink.texts.clear()
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(model.ainvoke("hi") for _ in range(streams)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    await close_session()
    return len(sink.texts), cpu, wall


def main() -> None:
    """Measure both shapes and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rate", type=float, default=20.0)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    for name, rate in (("paced", options.rate), ("burst", 0.0)):
        here, there = spawn.Pipe()
        server = spawn.Process(target=serve, args=(there, options.tokens, rate), daemon=True)
        server.start()
        try:
            url = f"http://127.0.0.1:{here.recv()}/v1"
            tokens, cpu, wall = uvloop.run(measure(url, options.streams))
        finally:
            server.terminate()
            server.join()
        print(  # noqa: T201 - a script's answer
            f"{name}: {options.streams} streams, {tokens} tokens, {tokens / wall:,.0f} tokens/s, "
            f"{cpu / tokens * 1e6:.1f} us CPU per token"
        )


if __name__ == "__main__":
    main()
