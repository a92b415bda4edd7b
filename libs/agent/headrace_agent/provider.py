"""One streamed call of an OpenAI-compatible provider: HTTP, retries, time limits, and typed errors.

Invariant: whatever ends the reading (the answer's end, an error, a cancelled task) closes or gives back the socket at
once, and nothing is tried again after a piece of the answer has been handed out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
import orjson

from headrace_agent.addresses import SETTING, host_and_port
from headrace_agent.errors import ModelError, ModelTimeout, ModelUnavailable
from headrace_agent.pacing import ReadPacer
from headrace_agent.refusals import error_in_answer, refusal, retry_delay
from headrace_agent.sessions import CONNECT_SECONDS, read_pacer, session
from headrace_agent.sse import EventParser, EventTooLarge
from headrace_agent.text import clean

END_SECONDS = 0.05
"""How long the HTTP body may take to end after `[DONE]` before the connection is closed instead of reused."""

EVENT_BYTES_MAX = 8 * 1024 * 1024
"""One event of an answer; providers send a few hundred bytes."""

ERROR_BYTES_MAX = 64 * 1024
"""How much of a refusal's body is read."""

Event = dict[str, Any]


@dataclass(frozen=True)
class ModelCall:
    """What is sent, and how long its sender waits. Seconds; `max_retries` counts tries after the first."""

    url: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    first_byte_seconds: float
    silence_seconds: float
    max_retries: int
    may_call: Callable[[], None]
    secret: str = field(default="", repr=False)


class Answer:
    """An open answer: `async with Answer(call) as answer`, then `batch()` until it returns an empty list."""

    def __init__(self, call: ModelCall, *, paced: bool = False) -> None:
        """Prepare an answer; `paced` lets what follows its first piece be read together with other answers."""
        self._call = call
        self._paced = paced
        self._pacer: ReadPacer | None = None
        self._response: aiohttp.ClientResponse | None = None
        self._parser = EventParser(event_bytes_max=EVENT_BYTES_MAX)
        self._first: list[Event] = []
        self._finish_seen = False
        self._ended = False
        self._watch: _SilenceWatch | None = None

    async def __aenter__(self) -> Self:
        """Send the call, again if it may help, and wait for the first events.

        Raises ModelRefused, ModelUnavailable or ModelTimeout.
        """
        tries = 0
        while True:
            self._call.may_call()
            try:
                await self._open()
                return self
            except ModelError as error:
                self._close()
                delay = retry_delay(error, tries)
                if tries >= self._call.max_retries or delay is None:
                    raise
            except BaseException:
                self._close()
                raise
            tries += 1
            await asyncio.sleep(delay)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the connection back if the answer was read to its end, else close it."""
        self._close()

    async def batch(self) -> list[Event]:
        """Return the next events, at least one; an empty list is the end of a complete answer.

        Raises ModelUnavailable when the answer breaks off, ModelTimeout when the provider falls silent, ModelRefused
        when it says no in the middle.
        """
        if self._first:
            events, self._first = self._first, []
            return events
        return await self._read() if not self._ended else []

    async def _open(self) -> None:
        call = self._call
        self._parser = EventParser(event_bytes_max=EVENT_BYTES_MAX)
        self._finish_seen = self._ended = False
        deadline = asyncio.get_running_loop().time() + call.first_byte_seconds
        try:
            async with asyncio.timeout_at(deadline):
                self._response = await (await session()).post(
                    call.url, data=_encoded(call.body), headers=call.headers, allow_redirects=False
                )
                if self._response.status != 200:
                    raise refusal(
                        self._response.status, self._response.headers, await self._error_body(), self._call.secret
                    )
        except TimeoutError as error:
            if isinstance(error, aiohttp.ServerTimeoutError):
                raise self._unreachable(f"no connection in {CONNECT_SECONDS:g} s") from None
            raise self._silent("first_byte") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(type(error).__name__) from None
        if self._response.content_type == "application/json":
            self._first = await self._whole(deadline)
        else:
            self._watch = _SilenceWatch(self._response.content, deadline, self._silent)
            self._first = await self._read()
            self._watch.begun(call.silence_seconds)
            self._pacer = await read_pacer() if self._paced else None
        if not self._first:
            raise ModelUnavailable("the model provider sent an empty answer")

    async def _read(self) -> list[Event]:
        """Return at least one event, or nothing at the end; called once per token, so it does little else."""
        assert self._response is not None
        assert self._watch is not None
        events: list[Event] = []
        while not self._ended and not events:
            self._watch.waiting_since = self._watch.now()
            if self._pacer is not None and (connection := self._response.connection) and connection.transport:
                self._pacer.pause(connection.transport)
            try:
                chunk = await self._response.content.readany()
            except (aiohttp.ClientError, OSError) as error:
                raise ModelUnavailable(f"the model provider broke off its answer ({type(error).__name__})") from None
            self._watch.waiting_since = None
            try:
                datas = self._parser.feed(chunk) if chunk else self._parser.finish()
            except EventTooLarge as error:
                raise ModelUnavailable(f"the model provider sent {error}") from None
            for data in datas:
                self._take(data, events)
            if not chunk and not self._ended:
                self._ended = True
                # Some providers never send [DONE]; a finish_reason says as much.
                if not self._finish_seen:
                    raise ModelUnavailable("the model provider ended its answer in the middle")
            if self._ended:
                await self._to_end_of_body()
        return events

    def _take(self, data: bytes, events: list[Event]) -> None:
        if data == b"[DONE]":
            self._ended = True
            return
        event = _decoded(data)
        if event is None or self._ended:
            return
        if event.get("error"):
            raise error_in_answer(event["error"], self._call.secret)
        if (choices := event.get("choices")) and choices[0].get("finish_reason"):
            self._finish_seen = True
        events.append(event)

    async def _whole(self, deadline: float) -> list[Event]:
        """Return the one event of a provider that does not stream."""
        assert self._response is not None
        try:
            async with asyncio.timeout_at(deadline):
                event = _decoded(await self._response.read())
        except TimeoutError:
            raise self._silent("first_byte") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ModelUnavailable(f"the model provider broke off its answer ({type(error).__name__})") from None
        self._ended = True
        if event is None:
            raise ModelUnavailable("the model provider sent something that is no answer")
        if event.get("error"):
            raise error_in_answer(event["error"], self._call.secret)
        return [event]

    async def _to_end_of_body(self) -> None:
        """Read on to the end of the HTTP body, so that the connection can be used again; it is usually here already."""
        assert self._response is not None
        try:
            async with asyncio.timeout(END_SECONDS):
                while await self._response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            self._response.close()

    async def _error_body(self) -> bytes:
        assert self._response is not None
        return await self._response.content.read(ERROR_BYTES_MAX)

    def _unreachable(self, why: str) -> ModelUnavailable:
        place = host_and_port(self._call.url)
        return ModelUnavailable(f"the model provider at {place} could not be reached ({why}); {SETTING} names it")

    def _silent(self, which: Literal["first_byte", "silence"]) -> ModelTimeout:
        seconds = self._call.first_byte_seconds if which == "first_byte" else self._call.silence_seconds
        return ModelTimeout(f"the model provider was silent for {seconds:g} s ({which})", which=which)

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if self._response is not None:
            # Gives the connection back after the end of the body, closes it at once otherwise.
            self._response.release()
            self._response = None


class _SilenceWatch:
    """Ends a read that waits too long, with one timer for the whole answer: a timeout per token costs 5 us.

    The first limit is `deadline`, by the loop's clock; once the answer has begun it is a silence while a read waits.
    """

    def __init__(
        self,
        content: aiohttp.StreamReader,
        deadline: float,
        error: Callable[[Literal["first_byte", "silence"]], ModelTimeout],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.waiting_since: float | None = None
        self._limit_seconds: float | None = None
        self._content = content
        self._deadline = deadline
        self._error = error
        self._call_at = loop.call_at
        self._timer = loop.call_at(deadline, self._look)

    def begun(self, limit_seconds: float) -> None:
        """Go on with the limit for silences."""
        self._limit_seconds = limit_seconds
        self._timer.cancel()
        self._timer = self._call_at(self.now() + limit_seconds, self._look)

    def _look(self) -> None:
        now = self.now()
        if self._limit_seconds is None:
            due = self._deadline
        else:
            due = (now if self.waiting_since is None else self.waiting_since) + self._limit_seconds
        if now >= due:
            self._content.set_exception(self._error("first_byte" if self._limit_seconds is None else "silence"))
        else:
            self._timer = self._call_at(due, self._look)

    def stop(self) -> None:
        """Forget the answer."""
        self._timer.cancel()


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:
        # A tool's output may hold lone surrogates; anything else fails again, with its own message.
        return orjson.dumps(clean(body))


def _decoded(data: bytes) -> Event | None:
    """Return the event, with text that may be stored; None if it is not an object."""
    try:
        event = clean(orjson.loads(data)) if b"\\u0000" in data else orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            # orjson refuses lone surrogates, which some providers send when a token ends inside a character.
            event = clean(json.loads(data))
        except ValueError:
            raise ModelUnavailable("the model provider sent an event that is not JSON") from None
    return event if isinstance(event, dict) else None
