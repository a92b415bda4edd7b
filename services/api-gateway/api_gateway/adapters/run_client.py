"""Calls to run-worker: each for one user, with a deadline and the trace's context."""

from __future__ import annotations

from typing import TypeVar

import grpc
from headrace.run.v1 import run_service_pb2_grpc
from headrace_kit.auth import call_metadata
from headrace_kit.grpc_client import open_channel

from api_gateway.adapters.rpc import Neighbour, translated
from api_gateway.domain.keys import Principal

CALL_SECONDS = 10.0
"""Deadline of a call: twice the longest wait for a database connection."""

_SERVICE = "headrace.run.v1.RunService"
_RETRIED = (
    "GetThread",
    "ListThreads",
    "ListMessages",
    "GetThreadState",
    "GetRequest",
    "ListRequests",
    "GetRun",
    "ListRuns",
    "GetRunResult",
    "ListAgents",
    # Keyed writes: the handlers always send an idempotency key with these two.
    "CreateThread",
    "SubmitRequest",
)

Q = TypeVar("Q")
A = TypeVar("A")


def open_run_channel(address: str) -> grpc.aio.Channel:
    """Open a channel on which reads and keyed writes are tried again when run-worker is away for a moment."""
    return open_channel(address, retry_methods=[f"{_SERVICE}/{name}" for name in _RETRIED])


class RunClient:
    """RunService, called for a user."""

    def __init__(self, channel: grpc.aio.Channel, neighbour: Neighbour, *, token: str) -> None:
        self.rpc: run_service_pb2_grpc.RunServiceAsyncStub = run_service_pb2_grpc.RunServiceStub(channel)
        """The methods; hand one to `call`."""
        self._neighbour = neighbour
        self._token = token

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Q, A],
        request: Q,
        *,
        caller: Principal,
        timeout: float = CALL_SECONDS,
    ) -> A:
        """Call `method` for `caller`.

        Raises ServiceError with the reason that run-worker told.
        """
        metadata = call_metadata(self._token, uid=caller.uid, scopes=caller.scopes)
        with translated(self._neighbour):
            answer = await method(request, timeout=timeout, metadata=metadata)
        self._neighbour.met = True
        return answer
