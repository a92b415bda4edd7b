"""GET /v1/runs/{run_id}/events and /v1/requests/{request_id}/events, and the stream that a submit may answer with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

from headrace.run.v1 import run_pb2, run_service_pb2
from headrace_contract.projection import EventName
from headrace_kit.errors import DeadlineExceeded, InvalidArgument, Unavailable
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api_gateway.adapters.relay_client import Batch, RelayClient
from api_gateway.adapters.run_client import RunClient
from api_gateway.domain import keys, serial
from api_gateway.domain.frames import frame, frames
from api_gateway.domain.keys import Principal
from api_gateway.domain.registry import StreamRegistry
from api_gateway.handlers.event_stream import EventStream, Source
from api_gateway.handlers.gate import Gate
from api_gateway.handlers.http import query_list

_MODES = frozenset(EventName)

STREAM_QUERY = ("after", "modes")
"""Parameters of a run's event stream, and of a submit, which may answer with one."""


class Streams:
    """The event streams."""

    def __init__(
        self, gate: Gate, runs: RunClient, relay: RelayClient, streams: StreamRegistry, *, heartbeat_seconds: float
    ) -> None:
        self._gate = gate
        self._runs = runs
        self._relay = relay
        self._streams = streams
        self._heartbeat_seconds = heartbeat_seconds

    def routes(self) -> list[Route]:
        """Return the routes. A HEAD of an endless answer makes no sense, so there is none."""
        routes = [
            Route("/v1/runs/{run_id}/events", self.run_events),
            Route("/v1/requests/{request_id}/events", self.request_events),
        ]
        for route in routes:
            route.methods = {"GET"}
        return routes

    async def run_events(self, request: Request) -> Response:
        """Follow a run until its `end`."""
        principal = await self._gate.require(request, keys.READ, query=STREAM_QUERY)
        run_id, after, modes = request.path_params["run_id"], cursor_of(request), modes_of(request)

        async def begin() -> Source:
            return Source(_run_chunks(self._relay.follow(run_id, caller=principal, after=after, modes=modes)))

        return self.open(principal, begin)

    async def request_events(self, request: Request) -> Response:
        """Follow a request until it is a run, or has ended without one."""
        principal = await self._gate.require(request, keys.READ)
        request_id = request.path_params["request_id"]

        async def begin() -> Source:
            return Source(self._request_chunks(request_id, principal))

        return self.open(principal, begin)

    def open(self, principal: Principal, begin: Callable[[], Awaitable[Source]]) -> EventStream:
        """Return a response that streams what `begin` brings."""
        return EventStream(self._streams, principal, begin, heartbeat_seconds=self._heartbeat_seconds)

    def submitted(
        self, run_id: str, principal: Principal, *, after: str, modes: list[str], headers: Mapping[str, str]
    ) -> Source:
        """Return the source for a run that was just submitted: access is known, so its headers go out at once."""
        follow = self._relay.follow(run_id, caller=principal, after=after, modes=modes, accepted=True)
        return Source(_run_chunks(follow), headers)

    async def _request_chunks(self, request_id: str, principal: Principal) -> AsyncGenerator[bytes, None]:
        item = await self._request(request_id, principal)
        if last := _last_frame(item):
            yield last
            return
        follow = self._relay.follow(item.run_id, caller=principal, modes=[EventName.END])
        async with aclosing(follow) as batches:
            async for batch in batches:
                # The relay says that something happened, or every heartbeat that nothing did; run-worker says what.
                try:
                    item = await self._request(request_id, principal)
                except (Unavailable, DeadlineExceeded):
                    continue
                if last := _last_frame(item):
                    yield last
                    return
                yield frames([event for event in batch if event.event == EventName.QUEUE])

    async def _request(self, request_id: str, principal: Principal) -> run_pb2.Request:
        asked = run_service_pb2.GetRequestRequest(request_id=request_id)
        return (await self._runs.call(self._runs.rpc.GetRequest, asked, caller=principal)).request


async def _run_chunks(follow: AsyncGenerator[Batch, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(follow) as batches:
        async for batch in batches:
            yield frames(batch)
            if batch and batch[-1].event == EventName.END:
                return


def _last_frame(item: run_pb2.Request) -> bytes:
    """Return what closes a request's stream, nothing while it is queued."""
    names = {"request_id": item.request_id, "thread_id": item.thread_id, "run_id": item.run_id}
    if item.state == run_pb2.Request.STATE_QUEUED:
        return b""
    if item.state == run_pb2.Request.STATE_DISPATCHED:
        return frame("run", serial.dumps(names))
    return frame(EventName.END, serial.dumps({"status": serial.request_state(item.state), **names}))


def cursor_of(request: Request) -> str:
    """Return where to go on: `Last-Event-ID`, which a reconnecting browser sends, before the address's `after`."""
    return request.headers.get("last-event-id") or request.query_params.get("after", "")


def modes_of(request: Request) -> list[str]:
    """Return the chosen event names, none meaning all.

    Raises InvalidArgument for one that no run has.
    """
    modes = query_list(request, "modes")
    for mode in modes:
        if mode not in _MODES:
            raise InvalidArgument(
                f"modes: {mode[:64]!r} is none of {', '.join(sorted(_MODES))}", reason="MODE_UNKNOWN", field="modes"
            )
    return modes
