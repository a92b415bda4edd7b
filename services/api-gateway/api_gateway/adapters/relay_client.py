"""Following a run through event-relay: one logical stream over as many gRPC calls as the relay's restarts need.

Invariant: the next call begins behind the last event that the consumer took, so nothing is missed and nothing is
doubled; and no call outlives its consumer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import grpc
import structlog
from headrace.relay.v1 import relay_service_pb2, relay_service_pb2_grpc
from headrace_kit.auth import call_metadata
from headrace_kit.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServiceError,
    Unauthenticated,
    Unavailable,
)

from api_gateway.adapters.rpc import Neighbour, typed
from api_gateway.domain.keys import Principal

ACCEPT_SECONDS = 5.0
"""How long a call's first sign is awaited before silence counts as acceptance: the relay's wait for PostgreSQL."""
REFUSAL_SECONDS = 0.05
"""How long after the initial metadata a refusal may still come: it comes in the same packet, read a moment later."""
RECONNECT_SECONDS = (0.1, 2.0)
"""First and longest pause before the next call."""
SILENT_HEARTBEATS = 3
"""A relay that missed so many heartbeats is taken for gone."""
MAX_DEFECTS = 3
"""Internal errors in a row, without an event between them, after which the client is told by a broken stream."""

_FINAL = (InvalidArgument, Unauthenticated, PermissionDenied, NotFound, AlreadyExists, FailedPrecondition)

log = structlog.get_logger("headrace.gateway.relay")

Batch = Sequence[relay_service_pb2.Event]
_Call: TypeAlias = "grpc.aio.UnaryStreamCall[relay_service_pb2.FollowRunRequest, relay_service_pb2.FollowRunResponse]"


@dataclass(frozen=True, slots=True)
class Pace:
    """The relay's promises, from the budget file."""

    heartbeat_seconds: float
    outage_seconds: float


class RelayClient:
    """RelayService, called for a user."""

    def __init__(self, channel: grpc.aio.Channel, neighbour: Neighbour, *, token: str, pace: Pace) -> None:
        self._stub: relay_service_pb2_grpc.RelayServiceAsyncStub = relay_service_pb2_grpc.RelayServiceStub(channel)
        self._neighbour = neighbour
        self._token = token
        self._pace = pace

    async def follow(
        self, run_id: str, *, caller: Principal, after: str = "", modes: Sequence[str] = (), accepted: bool = False
    ) -> AsyncGenerator[Batch, None]:
        """Yield the run's events in batches, an empty one as a sign of life; stop iterating at `end`.

        The first yield says that the relay accepted the call; with `accepted` (access is known) it comes at once, and
        the relay's absence is an outage like any later one. Raises ServiceError: the relay's refusal, or Unavailable
        after an outage of `outage_seconds`.
        """
        loop = asyncio.get_running_loop()
        heard, pause, defects = loop.time(), RECONNECT_SECONDS[0], 0
        if accepted:
            yield ()
        while True:
            try:
                async with aclosing(self._one_call(run_id, after, modes, caller, prove=not accepted)) as batches:
                    async for batch in batches:
                        accepted = True
                        if batch is not None:
                            heard, pause = loop.time(), RECONNECT_SECONDS[0]
                        if batch:
                            defects = 0
                        yield batch or ()
                        after = next((event.id for event in reversed(batch or ()) if event.id), after)
                reason = "ENDED_EARLY"
            except ServiceError as error:
                if not accepted or isinstance(error, _FINAL):
                    raise
                defects += type(error) is ServiceError
                if defects >= MAX_DEFECTS:
                    raise
                reason = error.reason
            if loop.time() - heard > self._pace.outage_seconds:
                raise Unavailable("event-relay is away", reason="RELAY_OUTAGE", retry_after_seconds=1.0)
            log.info("following again", run_id=run_id, after=after, reason=reason)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, RECONNECT_SECONDS[1])

    async def _one_call(
        self, run_id: str, after: str, modes: Sequence[str], caller: Principal, *, prove: bool
    ) -> AsyncGenerator[Batch | None, None]:
        """Yield what one call brings, None first when it was let in without a word. Ends when the call ends well."""
        request = relay_service_pb2.FollowRunRequest(run_id=run_id, after=after, modes=modes)
        metadata = call_metadata(self._token, uid=caller.uid, scopes=caller.scopes)
        call: _Call = self._stub.FollowRun(request, metadata=metadata)
        silence = SILENT_HEARTBEATS * self._pace.heartbeat_seconds
        first = asyncio.create_task(_read(call), name=f"follow {run_id}")
        try:
            if prove and not await _first_sign(call, first):
                yield None
            async with asyncio.timeout(silence):
                message = await first
            self._neighbour.met = True
            while message is not None:
                yield message.batch.events if message.HasField("batch") else ()
                async with asyncio.timeout(silence):
                    message = await _read(call)
        except TimeoutError:
            raise Unavailable("event-relay is silent", reason="RELAY_SILENT") from None
        except grpc.aio.AioRpcError as error:
            raise typed(error, neighbour=self._neighbour) from None
        finally:
            call.cancel()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)


async def _first_sign(call: _Call, first: asyncio.Task[relay_service_pb2.FollowRunResponse | None]) -> bool:
    """Wait until the call was let in or refused; return whether `first` already says which."""
    let_in = asyncio.create_task(call.initial_metadata())
    try:
        await asyncio.wait({first, let_in}, timeout=ACCEPT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        # A refusal brings initial metadata too, right before its status.
        await asyncio.wait({first}, timeout=REFUSAL_SECONDS)
        return first.done()
    finally:
        let_in.cancel()
        await asyncio.gather(let_in, return_exceptions=True)


async def _read(call: _Call) -> relay_service_pb2.FollowRunResponse | None:
    message = await call.read()
    return message if isinstance(message, relay_service_pb2.FollowRunResponse) else None
