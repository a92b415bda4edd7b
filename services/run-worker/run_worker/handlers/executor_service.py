"""ExecutorService: hints and questions of control. None of it is needed for a run to start, end or be cancelled."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import grpc
from headrace.executor.v1 import executor_service_pb2 as pb
from headrace.executor.v1 import executor_service_pb2_grpc
from headrace_kit.ids import parse_id

FULL_NAME = "headrace.executor.v1.ExecutorService"


class Held(Protocol):
    """What the handler asks of the executor."""

    @property
    def slots(self) -> int:
        """Slots in all."""
        ...

    @property
    def free(self) -> int:
        """Slots free now."""
        ...

    def run_ids(self) -> list[UUID]:
        """Runs held now."""
        ...

    def token_count(self) -> int:
        """Pieces of model output so far."""
        ...

    def wake(self) -> None:
        """Claim at once."""

    def drain(self) -> None:
        """Begin to drain."""

    async def check_cancel(self, run_id: UUID) -> bool:
        """Ask PostgreSQL about a run that may be cancelled; False when it is not held here."""
        ...


class ExecutorServicer(executor_service_pb2_grpc.ExecutorServiceServicer):
    """The servicer of one executor process."""

    def __init__(self, *, executor_id: UUID, held: Held, cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self._executor_id = executor_id
        self._held = held
        self._cpu_seconds = cpu_seconds

    async def Wake(  # noqa: N802  # the proto's name
        self, request: pb.WakeRequest, context: grpc.aio.ServicerContext[pb.WakeRequest, pb.WakeResponse]
    ) -> pb.WakeResponse:
        """Claim at once."""
        free = self._held.free
        self._held.wake()
        return pb.WakeResponse(free_slots=free)

    async def HintCancel(  # noqa: N802  # the proto's name
        self,
        request: pb.HintCancelRequest,
        context: grpc.aio.ServicerContext[pb.HintCancelRequest, pb.HintCancelResponse],
    ) -> pb.HintCancelResponse:
        """Check a run's cancel now."""
        return pb.HintCancelResponse(found=await self._held.check_cancel(parse_id(request.run_id, kind="run")))

    async def Drain(  # noqa: N802  # the proto's name
        self, request: pb.DrainRequest, context: grpc.aio.ServicerContext[pb.DrainRequest, pb.DrainResponse]
    ) -> pb.DrainResponse:
        """Begin to drain."""
        running = len(self._held.run_ids())
        self._held.drain()
        return pb.DrainResponse(running=running)

    async def Describe(  # noqa: N802  # the proto's name
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext[pb.DescribeRequest, pb.DescribeResponse]
    ) -> pb.DescribeResponse:
        """Describe the executor."""
        return pb.DescribeResponse(
            executor_id=str(self._executor_id),
            pid=os.getpid(),
            slots=self._held.slots,
            free_slots=self._held.free,
            run_ids=[str(run_id) for run_id in self._held.run_ids()],
            cpu_seconds=self._cpu_seconds(),
            tokens=self._held.token_count(),
        )
