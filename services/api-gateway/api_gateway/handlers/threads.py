"""/v1/threads: conversations, their transcript and state, and /v1/agents, whom they talk to."""

from __future__ import annotations

from headrace.run.v1 import run_service_pb2 as pb
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api_gateway.adapters.run_client import RunClient
from api_gateway.domain import bodies, keys, serial
from api_gateway.handlers.gate import Gate
from api_gateway.handlers.http import PAGE_QUERY, answer, idempotency_key, page_of, query_flag, read_body


class Threads:
    """The routes of threads and agents."""

    def __init__(self, gate: Gate, runs: RunClient, *, body_bytes: int) -> None:
        self._gate = gate
        self._runs = runs
        self._body_bytes = body_bytes

    def routes(self) -> list[Route]:
        """Return the routes."""
        one = "/v1/threads/{thread_id}"
        return [
            Route("/v1/threads", self.create, methods=["POST"]),
            Route("/v1/threads", self.list, methods=["GET"]),
            Route(one, self.get, methods=["GET"]),
            Route(one, self.update, methods=["PATCH"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/messages", self.messages, methods=["GET"]),
            Route(f"{one}/state", self.state, methods=["GET"]),
            Route("/v1/agents", self.agents, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        """Create a thread."""
        principal = await self._gate.require(request, keys.WRITE)
        key, _ = idempotency_key(request)
        body = await read_body(request, bodies.CreateThread, limit=self._body_bytes)
        asked = pb.CreateThreadRequest(
            agent=body.agent,
            title=body.title or "",
            metadata=serial.dumps(body.metadata or {}),
            idempotency_key=key,
            thread_id=body.thread_id or "",
        )
        made = await self._runs.call(self._runs.rpc.CreateThread, asked, caller=principal)
        location = {"location": f"/v1/threads/{made.thread.thread_id}"}
        return answer(serial.thread(made.thread), status=201, headers=location)

    async def list(self, request: Request) -> Response:
        """List the user's threads, last changed first."""
        principal = await self._gate.require(request, keys.READ, query=PAGE_QUERY)
        size, token = page_of(request)
        asked = pb.ListThreadsRequest(page_size=size, page_token=token)
        found = await self._runs.call(self._runs.rpc.ListThreads, asked, caller=principal)
        return answer(serial.page("threads", map(serial.thread, found.threads), found.next_page_token))

    async def get(self, request: Request) -> Response:
        """Get a thread."""
        principal = await self._gate.require(request, keys.READ)
        asked = pb.GetThreadRequest(thread_id=request.path_params["thread_id"])
        found = await self._runs.call(self._runs.rpc.GetThread, asked, caller=principal)
        return answer(serial.thread(found.thread))

    async def update(self, request: Request) -> Response:
        """Change title or metadata."""
        principal = await self._gate.require(request, keys.WRITE)
        body = await read_body(request, bodies.UpdateThread, limit=self._body_bytes)
        asked = pb.UpdateThreadRequest(thread_id=request.path_params["thread_id"], title=body.title)
        if body.metadata is not None:
            asked.metadata = serial.dumps(body.metadata)
        changed = await self._runs.call(self._runs.rpc.UpdateThread, asked, caller=principal)
        return answer(serial.thread(changed.thread))

    async def delete(self, request: Request) -> Response:
        """Delete a thread; with `cancel=true` also one with an active run."""
        principal = await self._gate.require(request, keys.WRITE, query=("cancel",))
        thread_id = request.path_params["thread_id"]
        asked = pb.DeleteThreadRequest(thread_id=thread_id, cancel=query_flag(request, "cancel"))
        await self._runs.call(self._runs.rpc.DeleteThread, asked, caller=principal)
        return Response(status_code=204)

    async def messages(self, request: Request) -> Response:
        """List the transcript, oldest first, with the runs that it names."""
        principal = await self._gate.require(request, keys.READ, query=PAGE_QUERY)
        size, token = page_of(request)
        thread_id = request.path_params["thread_id"]
        asked = pb.ListMessagesRequest(thread_id=thread_id, page_size=size, page_token=token)
        found = await self._runs.call(self._runs.rpc.ListMessages, asked, caller=principal)
        listed = serial.page("messages", map(serial.message, found.messages), found.next_page_token)
        return answer({**listed, "runs": [serial.run(run) for run in found.runs]})

    async def state(self, request: Request) -> Response:
        """Get the values of the latest checkpoint."""
        principal = await self._gate.require(request, keys.READ)
        asked = pb.GetThreadStateRequest(thread_id=request.path_params["thread_id"])
        found = await self._runs.call(self._runs.rpc.GetThreadState, asked, caller=principal)
        return answer(
            {
                "values": serial.spliced(found.values, b"{}"),
                "next": list(found.next),
                "checkpoint_id": found.checkpoint_id or None,
            }
        )

    async def agents(self, request: Request) -> Response:
        """List the agents that executors have published."""
        principal = await self._gate.require(request, keys.READ, query=PAGE_QUERY)
        size, token = page_of(request)
        asked = pb.ListAgentsRequest(page_size=size, page_token=token)
        found = await self._runs.call(self._runs.rpc.ListAgents, asked, caller=principal)
        return answer(serial.page("agents", map(serial.agent, found.agents), found.next_page_token))
