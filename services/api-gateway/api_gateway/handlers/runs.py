"""/v1/runs: state, result, waiting and cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from headrace.run.v1 import run_service_pb2 as pb
from headrace_kit.errors import Unavailable
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api_gateway.adapters.run_client import RunClient
from api_gateway.domain import keys, serial
from api_gateway.domain.registry import StreamRegistry
from api_gateway.handlers.gate import Gate
from api_gateway.handlers.http import PAGE_QUERY, answer, page_of, query_list, query_number

WAIT_SECONDS = 30.0
"""What a wait takes when the client says nothing."""
MAX_WAIT_SECONDS = 60.0
"""RunService's own bound."""
WAIT_MARGIN_SECONDS = 5.0
"""Deadline of the call beyond the wait, so that run-worker's answer comes first."""
CLIENT_GONE = 499
"""Status for a client that did not stay; nobody reads it."""

T = TypeVar("T")


class Runs:
    """The routes of runs, but their events."""

    def __init__(self, gate: Gate, runs: RunClient, streams: StreamRegistry) -> None:
        self._gate = gate
        self._runs = runs
        self._closing = streams.closing

    def routes(self) -> list[Route]:
        """Return the routes."""
        one = "/v1/runs/{run_id}"
        return [
            Route("/v1/runs", self.list, methods=["GET"]),
            Route(one, self.get, methods=["GET"]),
            Route(f"{one}/result", self.result, methods=["GET"]),
            Route(f"{one}/wait", self.wait, methods=["GET"]),
            Route(f"{one}/cancel", self.cancel, methods=["POST"]),
        ]

    async def list(self, request: Request) -> Response:
        """List the user's runs, newest first; `thread_id` and `state` narrow it."""
        principal = await self._gate.require(request, keys.READ, query=("thread_id", "state", *PAGE_QUERY))
        size, token = page_of(request)
        asked = pb.ListRunsRequest(
            thread_id=request.query_params.get("thread_id", ""),
            page_size=size,
            page_token=token,
            states=[serial.run_state_number(word) for word in query_list(request, "state")],  # type: ignore[misc]  # numbers are what the field takes
        )
        found = await self._runs.call(self._runs.rpc.ListRuns, asked, caller=principal)
        return answer(serial.page("runs", map(serial.run, found.runs), found.next_page_token))

    async def get(self, request: Request) -> Response:
        """Get a run; its id answers from intake on."""
        principal = await self._gate.require(request, keys.READ)
        asked = pb.GetRunRequest(run_id=request.path_params["run_id"])
        found = await self._runs.call(self._runs.rpc.GetRun, asked, caller=principal)
        return answer(serial.run(found.run))

    async def result(self, request: Request) -> Response:
        """Get what a run ended with; before its end, the run and no output."""
        principal = await self._gate.require(request, keys.READ)
        asked = pb.GetRunResultRequest(run_id=request.path_params["run_id"])
        found = await self._runs.call(self._runs.rpc.GetRunResult, asked, caller=principal)
        return answer(
            {
                "run": serial.run(found.run),
                "output": serial.message(found.output) if found.HasField("output") else None,
                "values": serial.spliced(found.values, b"null"),
            }
        )

    async def wait(self, request: Request) -> Response:
        """Answer when the run has ended or the time is over; the state says which."""
        principal = await self._gate.require(request, keys.READ, query=("timeout_seconds",))
        seconds = query_number(request, "timeout_seconds", default=WAIT_SECONDS, least=0, most=MAX_WAIT_SECONDS)
        timeout = Duration()
        timeout.FromMilliseconds(int(seconds * 1000))
        asked = pb.WaitRunRequest(run_id=request.path_params["run_id"], timeout=timeout)
        call = self._runs.call(self._runs.rpc.WaitRun, asked, caller=principal, timeout=seconds + WAIT_MARGIN_SECONDS)
        done = await self._while_wanted(request, call)
        return Response(status_code=CLIENT_GONE) if done is None else answer(serial.run(done.run))

    async def cancel(self, request: Request) -> Response:
        """Commit a cancel; the run's state follows."""
        principal = await self._gate.require(request, keys.WRITE)
        asked = pb.CancelRunRequest(run_id=request.path_params["run_id"])
        done = await self._runs.call(self._runs.rpc.CancelRun, asked, caller=principal)
        return answer(serial.run(done.run), status=202)

    async def _while_wanted(self, request: Request, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what `work` returns, or None when the client went away first.

        Raises Unavailable when this process stops first; another replica goes on waiting.
        """
        working = asyncio.create_task(work, name="wait run")
        gone = asyncio.create_task(_disconnected(request), name="wait disconnect")
        closing = asyncio.create_task(self._closing.wait(), name="wait closing")
        try:
            await asyncio.wait({working, gone, closing}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if gone.done():
                return None
            raise Unavailable("this replica is stopping", reason="STOPPING", retry_after_seconds=1.0)
        finally:
            for task in (working, gone, closing):
                task.cancel()
            await asyncio.gather(working, gone, closing, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
