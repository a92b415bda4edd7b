"""Small real gRPC servers that speak our protos by script, for what the real services rarely do."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from headrace.relay.v1 import relay_service_pb2, relay_service_pb2_grpc
from headrace.run.v1 import run_service_pb2, run_service_pb2_grpc
from headrace_kit.auth import Caller, TokenBook, current_caller
from headrace_kit.errors import NotFound
from headrace_kit.grpc_server import GrpcServer

SERVICE_TOKEN = "token-of-the-gateway"

RunAnswer = Callable[[Any], Any]
RelayScript = Callable[[relay_service_pb2.FollowRunRequest], AsyncIterator[relay_service_pb2.FollowRunResponse]]

RUN_METHODS = tuple(method.name for method in run_service_pb2.DESCRIPTOR.services_by_name["RunService"].methods)


def tokens_file(folder: Path) -> Path:
    """Write the token file that both sides of the tests use."""
    path = folder / "tokens.json"
    path.write_text(json.dumps({"api-gateway": hashlib.sha256(SERVICE_TOKEN.encode()).hexdigest()}))
    return path


class ScriptedRuns:
    """RunService whose methods do what `answers` says by name; what is not named is NOT_FOUND. Remembers its calls."""

    def __init__(self) -> None:
        self.answers: dict[str, RunAnswer] = {}
        self.calls: list[tuple[str, Any, Caller, dict[str, str]]] = []
        for name in RUN_METHODS:
            setattr(self, name, self._method(name))

    def _method(self, name: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> Any:
            metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
            self.calls.append((name, request, current_caller(), metadata))
            if name not in self.answers:
                raise NotFound(f"{name}: no such thing", reason="THING_NOT_FOUND")
            answer = self.answers[name](request)
            return await answer if asyncio.iscoroutine(answer) else answer

        return call

    def last(self, name: str) -> Any:
        """The newest request of a method."""
        return next(request for called, request, _, _ in reversed(self.calls) if called == name)

    def reset(self) -> None:
        self.answers.clear()
        self.calls.clear()


class ScriptedRelay(relay_service_pb2_grpc.RelayServiceServicer):
    """RelayService that plays `script`. Counts its open streams; `idle` is set while there are none."""

    def __init__(self) -> None:
        self.script: RelayScript = _unknown
        self.calls: list[relay_service_pb2.FollowRunRequest] = []
        self.open = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.lets_in = False
        """Whether a call is let in, by its initial metadata, before the script begins."""

    async def FollowRun(  # noqa: N802  # gRPC's name
        self, request: relay_service_pb2.FollowRunRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[relay_service_pb2.FollowRunResponse]:
        self.calls.append(request)
        self.open += 1
        self.idle.clear()
        try:
            if self.lets_in:
                await context.send_initial_metadata(())
            async for response in self.script(request):
                yield response
        finally:
            self.open -= 1
            if not self.open:
                self.idle.set()

    def reset(self) -> None:
        self.script = _unknown
        self.lets_in = False
        self.calls.clear()


async def _unknown(
    request: relay_service_pb2.FollowRunRequest,
) -> AsyncIterator[relay_service_pb2.FollowRunResponse]:
    raise NotFound(f"run {request.run_id!r} not found", reason="RUN_NOT_FOUND")
    yield  # makes this a generator


def batch(*events: tuple[str, str, bytes]) -> relay_service_pb2.FollowRunResponse:
    """A batch of (id, name, data)."""
    listed = [relay_service_pb2.Event(id=i, event=e, data=d) for i, e, d in events]
    return relay_service_pb2.FollowRunResponse(batch=relay_service_pb2.EventBatch(events=listed))


def heartbeat() -> relay_service_pb2.FollowRunResponse:
    return relay_service_pb2.FollowRunResponse(heartbeat=relay_service_pb2.Heartbeat())


@asynccontextmanager
async def serving(
    tokens: Path, *, runs: ScriptedRuns | None = None, relay: ScriptedRelay | None = None, listen: str = "127.0.0.1:0"
) -> AsyncIterator[GrpcServer]:
    """Serve what is given, with health, and say SERVING."""
    server = GrpcServer(service_name="scripted", listen=listen, tokens=TokenBook(tokens))
    if runs is not None:
        server.add(run_service_pb2_grpc.add_RunServiceServicer_to_server, runs, "headrace.run.v1.RunService")
    if relay is not None:
        server.add(relay_service_pb2_grpc.add_RelayServiceServicer_to_server, relay, "headrace.relay.v1.RelayService")
    await server.start()
    await server.set_serving(True)
    try:
        yield server
    finally:
        await server.stop(grace_seconds=0)
