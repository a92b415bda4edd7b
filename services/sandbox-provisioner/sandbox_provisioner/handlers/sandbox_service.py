"""SandboxService: describes the engine; every other call says why there are no sandboxes and what to do instead."""
# ruff: noqa: N802  # the methods carry the names of the RPCs

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from headrace.sandbox.v1 import sandbox_service_pb2 as pb
from headrace.sandbox.v1 import sandbox_service_pb2_grpc as pb_grpc

from sandbox_provisioner.adapters.docker_engine import DockerEngine
from sandbox_provisioner.errors import SandboxesUnavailable

FULL_NAME = "headrace.sandbox.v1.SandboxService"


class SandboxService(pb_grpc.SandboxServiceServicer):
    """The servicer. A refused call has touched nothing: no engine, no database."""

    def __init__(self, engine: DockerEngine, *, subnets: int) -> None:
        self._engine = engine
        self._subnets = subnets

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        """Describe the engine, with or without one."""
        report = await self._engine.latest()
        return pb.DescribeResponse(
            available=False,
            unavailable_reason=report.unavailable_reason,
            engine=report.engine,
            engine_version=report.version,
            engine_id=report.engine_id,
            subnets=self._subnets,
            subnets_free=report.subnets_free,
        )

    async def _refusal(self, method: str) -> SandboxesUnavailable:
        report = await self._engine.latest()
        return SandboxesUnavailable(report.unavailable_reason, method=method)

    async def EnsureSandbox(self, request: pb.EnsureSandboxRequest, context: Any) -> pb.EnsureSandboxResponse:
        """Refuse."""
        raise await self._refusal("EnsureSandbox")

    async def GetSandbox(self, request: pb.GetSandboxRequest, context: Any) -> pb.GetSandboxResponse:
        """Refuse."""
        raise await self._refusal("GetSandbox")

    async def ListSandboxes(self, request: pb.ListSandboxesRequest, context: Any) -> pb.ListSandboxesResponse:
        """Refuse."""
        raise await self._refusal("ListSandboxes")

    async def Execute(self, request: pb.ExecuteRequest, context: Any) -> AsyncIterator[pb.ExecuteResponse]:
        """Refuse, before the first message."""
        raise await self._refusal("Execute")
        yield pb.ExecuteResponse()  # makes this an async generator, which the server needs of a stream

    async def ReadFile(self, request: pb.ReadFileRequest, context: Any) -> pb.ReadFileResponse:
        """Refuse."""
        raise await self._refusal("ReadFile")

    async def WriteFile(self, request: pb.WriteFileRequest, context: Any) -> pb.WriteFileResponse:
        """Refuse."""
        raise await self._refusal("WriteFile")

    async def ListFiles(self, request: pb.ListFilesRequest, context: Any) -> pb.ListFilesResponse:
        """Refuse."""
        raise await self._refusal("ListFiles")

    async def DeleteSandbox(self, request: pb.DeleteSandboxRequest, context: Any) -> pb.DeleteSandboxResponse:
        """Refuse."""
        raise await self._refusal("DeleteSandbox")

    async def Quiesce(self, request: pb.QuiesceRequest, context: Any) -> pb.QuiesceResponse:
        """Refuse."""
        raise await self._refusal("Quiesce")
