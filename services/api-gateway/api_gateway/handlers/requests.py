"""Submissions to threads: POST answers with the request, or with the run's events themselves."""

from __future__ import annotations

from headrace.run.v1 import run_service_pb2 as pb
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api_gateway.adapters.run_client import RunClient
from api_gateway.domain import bodies, keys, serial
from api_gateway.domain.keys import Principal
from api_gateway.handlers.event_stream import Source
from api_gateway.handlers.gate import Gate
from api_gateway.handlers.http import PAGE_QUERY, answer, idempotency_key, page_of, read_body
from api_gateway.handlers.streams import STREAM_QUERY, Streams, cursor_of, modes_of


class Requests:
    """The routes of requests."""

    def __init__(self, gate: Gate, runs: RunClient, streams: Streams, *, body_bytes: int) -> None:
        self._gate = gate
        self._runs = runs
        self._streams = streams
        self._body_bytes = body_bytes

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/threads/{thread_id}/requests", self.submit, methods=["POST"]),
            Route("/v1/threads/{thread_id}/requests", self.list, methods=["GET"]),
            Route("/v1/threads/{thread_id}/continue", self.go_on, methods=["POST"]),
            Route("/v1/requests/{request_id}", self.get, methods=["GET"]),
            Route("/v1/requests/{request_id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def submit(self, request: Request) -> Response:
        """Submit input; with `Accept: text/event-stream` the answer is the run's stream."""
        principal = await self._gate.require(request, keys.WRITE, query=STREAM_QUERY)
        key, told = idempotency_key(request)
        body = await read_body(request, bodies.SubmitRequest, limit=self._body_bytes)
        asked = _submission(request.path_params["thread_id"], key, body)
        if "text/event-stream" not in request.headers.get("accept", ""):
            done = await self._submit(asked, principal)
            return answer(serial.request(done.request), status=202, headers=_headers(done, keyed=told))
        after, modes = cursor_of(request), modes_of(request)

        async def begin() -> Source:
            # With the stream's place held: a limit is told before anything is submitted.
            done = await self._submit(asked, principal)
            run_id, headers = done.request.run_id, _headers(done, keyed=told)
            headers["content-location"] = f"/v1/runs/{run_id}/events"
            return self._streams.submitted(run_id, principal, after=after, modes=modes, headers=headers)

        return self._streams.open(principal, begin)

    async def _submit(self, asked: pb.SubmitRequestRequest, principal: Principal) -> pb.SubmitRequestResponse:
        return await self._runs.call(self._runs.rpc.SubmitRequest, asked, caller=principal)

    async def list(self, request: Request) -> Response:
        """List a thread's requests, newest first."""
        principal = await self._gate.require(request, keys.READ, query=PAGE_QUERY)
        size, token = page_of(request)
        thread_id = request.path_params["thread_id"]
        asked = pb.ListRequestsRequest(thread_id=thread_id, page_size=size, page_token=token)
        found = await self._runs.call(self._runs.rpc.ListRequests, asked, caller=principal)
        return answer(serial.page("requests", map(serial.request, found.requests), found.next_page_token))

    async def go_on(self, request: Request) -> Response:
        """Let a paused thread dispatch the head of its queue."""
        principal = await self._gate.require(request, keys.WRITE)
        asked = pb.ContinueThreadRequest(thread_id=request.path_params["thread_id"])
        done = await self._runs.call(self._runs.rpc.ContinueThread, asked, caller=principal)
        return answer(serial.request(done.request), status=202, headers={"location": f"/v1/runs/{done.request.run_id}"})

    async def get(self, request: Request) -> Response:
        """Get a request."""
        principal = await self._gate.require(request, keys.READ)
        asked = pb.GetRequestRequest(request_id=request.path_params["request_id"])
        found = await self._runs.call(self._runs.rpc.GetRequest, asked, caller=principal)
        return answer(serial.request(found.request))

    async def cancel(self, request: Request) -> Response:
        """Cancel a queued request."""
        principal = await self._gate.require(request, keys.WRITE)
        asked = pb.CancelRequestRequest(request_id=request.path_params["request_id"])
        done = await self._runs.call(self._runs.rpc.CancelRequest, asked, caller=principal)
        return answer(serial.request(done.request))


def _submission(thread_id: str, key: str, body: bodies.SubmitRequest) -> pb.SubmitRequestRequest:
    return pb.SubmitRequestRequest(
        thread_id=thread_id,
        input=serial.dumps(body.graph_input()),
        idempotency_key=key,
        multitask_strategy=serial.strategy_number(body.multitask_strategy or ""),
        config=serial.dumps(body.config) if body.config is not None else b"",
        context=serial.dumps(body.context) if body.context is not None else b"",
        stream_modes=body.stream_modes,
        stream_subgraphs=body.stream_subgraphs,
        durability=body.durability or "",
        metadata=serial.dumps(body.metadata) if body.metadata is not None else b"",
    )


def _headers(done: pb.SubmitRequestResponse, *, keyed: bool) -> dict[str, str]:
    headers = {"location": f"/v1/runs/{done.request.run_id}"}
    if keyed and done.replayed:
        headers["idempotency-replayed"] = "true"
    return headers
