"""An OpenAI-compatible model provider that says what its script says, at exactly the stated pace.

`python -m headrace_loadtest.provider --listen 127.0.0.1:0` prints `ready http://host:port`; SIGTERM ends it.
Invariant: token i leaves at first_s + i / rate after its request, by the clock and not by the token before it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import uuid
from collections import OrderedDict
from typing import Any, cast

import httptools
import uvloop

from headrace_loadtest import scripts
from headrace_loadtest.answers import Answer
from headrace_loadtest.stats import USER_TEXT_KEPT, Facts, Stats
from headrace_loadtest.wire import error_body, json_response, whole_completion

BODY_MAX_BYTES = 16 * 1024 * 1024
"""A conversation larger than this is a mistake of the test."""
FAILURES_KEPT = 10_000
"""Conversations whose scripted failures are counted; the oldest are forgotten."""
LISTEN_BACKLOG = 4096
"""A load level opens its connections at once."""


class Provider:
    """What all connections share: the counters and the scripted failures so far."""

    def __init__(self) -> None:
        self.stats = Stats()
        self.connections: set[ProviderConnection] = set()
        self._failures: OrderedDict[str, int] = OrderedDict()

    def fails_now(self, turn: scripts.Turn, digest: str) -> bool:
        """Return whether this request is one of those that its script lets fail, and count it."""
        if turn.script.status is None:
            return False
        if turn.script.times is None:
            return True
        seen = self._failures.get(digest, 0) + 1
        self._failures[digest] = seen
        self._failures.move_to_end(digest)
        if len(self._failures) > FAILURES_KEPT:
            self._failures.popitem(last=False)
        return seen <= turn.script.times

    def reset(self) -> None:
        """Forget counters and scripted failures."""
        self.stats.reset()
        self._failures.clear()


class ProviderConnection(asyncio.Protocol):
    """One client's connection: a request, its answer, the next request."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.transport: asyncio.Transport
        self.answer: Answer | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = bytearray()
        self._keep_alive = True

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read requests."""
        self.transport = cast(asyncio.Transport, transport)
        self.provider.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came; a request that is not HTTP ends the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            self.transport.abort()
            raise
        except httptools.HttpParserError:
            self._respond(400, error_body("not an HTTP request", "invalid_request_error"))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a client that left before its answer's end."""
        self.provider.connections.discard(self)
        if self.answer is not None:
            self.answer.connection_lost()
            self.answer = None

    def pause_writing(self) -> None:
        """Stop an answer whose client reads slower than it is sent."""
        if self.answer is not None:
            self.answer.pause()

    def resume_writing(self) -> None:
        """Go on with it."""
        if self.answer is not None:
            self.answer.resume()

    # httptools' callbacks

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._url = b""
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        """Collect the target."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        self._body += body
        if len(self._body) > BODY_MAX_BYTES:
            self._respond(413, error_body("the request is too large", "invalid_request_error"))
            self.transport.close()

    def on_message_complete(self) -> None:
        """Route the request."""
        if self.answer is not None:  # no client of models pipelines
            self.transport.abort()
            return
        self._keep_alive = self._parser.should_keep_alive()  # the parser knows it only here
        method = self._parser.get_method()
        path = self._url.partition(b"?")[0]
        match (method, path):
            case (b"POST", b"/v1/chat/completions"):
                self._complete(bytes(self._body))
            case (b"GET", b"/v1/models"):
                model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "headrace"}
                self._respond(200, {"object": "list", "data": [model]})
            case (b"GET", b"/healthz"):
                self._respond(200, {"status": "ok"})
            case (b"GET", b"/stats"):
                self._respond(200, self.provider.stats.report())
            case (b"POST", b"/reset"):
                self.provider.reset()
                self._respond(200, {"status": "reset"})
            case _:
                told = f"no route {method.decode()} {path.decode('ascii', 'replace')}"
                self._respond(404, error_body(told, "invalid_request_error"))

    def _respond(self, status: int, body: Any, *, retry_after: float | None = None) -> None:
        self.transport.write(json_response(status, body, retry_after=retry_after, keep_alive=self._keep_alive))
        if not self._keep_alive:
            self.transport.close()

    def _complete(self, raw: bytes) -> None:
        try:
            body = json.loads(raw)  # orjson refuses lone surrogates, which a test may send on purpose
            model, messages = str(body["model"]), body["messages"]
            conversation = scripts.read_conversation(messages)
            tools = [str(tool["function"]["name"]) for tool in body.get("tools") or ()]
            turn = scripts.choose(model, conversation, tools)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._respond(400, error_body(f"{type(error).__name__}: {error}", "invalid_request_error"))
            return
        stream = bool(body.get("stream"))
        facts = Facts(
            model=model,
            user_text=conversation.user_text[:USER_TEXT_KEPT],
            stream=stream,
            messages=len(messages),
            turn=conversation.turn,
            tools=tools,
            ideal_seconds=turn.ideal_seconds,
        )
        stats = self.provider.stats
        stats.begin(facts)
        if self.provider.fails_now(turn, conversation.digest):
            facts.status = turn.script.status or 500
            stats.end(facts, "failed")
            kind = "rate_limit_error" if facts.status == 429 else "scripted_error"
            told = error_body(f"the script says {facts.status}", kind)
            self._respond(facts.status, told, retry_after=turn.script.retry_after)
            return
        prompt_tokens = len(raw) // 4  # the usual rule of thumb
        name = f"chatcmpl-{uuid.uuid4().hex}"
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.answer = Answer(
            self.transport,
            turn,
            facts,
            on_end=self._ended,
            name=name,
            prompt_tokens=prompt_tokens,
            include_usage=usage,
            whole=None if stream else whole_completion(name, model, turn, prompt_tokens),
        )
        self.answer.start()

    def _ended(self, facts: Facts, outcome: str) -> None:
        self.provider.stats.end(facts, outcome)
        self.answer = None
        if outcome == "completed" and not self._keep_alive:
            self.transport.close()


async def serve(host: str, port: int, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drop all connections."""
    provider = Provider()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ProviderConnection(provider), host, port, backlog=LISTEN_BACKLOG)
    bound = server.sockets[0].getsockname()
    print(f"ready http://{bound[0]}:{bound[1]}", flush=True)
    await stop.wait()
    server.close()
    for connection in tuple(provider.connections):
        connection.transport.abort()


async def _main(host: str, port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(host, port, stop)


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m headrace_loadtest.provider", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0 takes a free one")
    host, _, port = parser.parse_args().listen.rpartition(":")
    if not port.isdecimal():
        parser.error("--listen wants HOST:PORT, for example 127.0.0.1:9100")
    uvloop.run(_main(host, int(port)))


if __name__ == "__main__":
    main()
