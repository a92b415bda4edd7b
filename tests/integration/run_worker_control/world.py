"""RunService as its callers meet it: a real server on real PostgreSQL and Redis, and the executors' half by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import grpc
from headrace.executor.v1 import executor_service_pb2, executor_service_pb2_grpc
from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb
from headrace.run.v1 import run_service_pb2_grpc as rpc
from headrace_kit.auth import TokenBook, call_metadata, sha256_hex
from headrace_kit.errors import ServiceError, from_rpc_error
from headrace_kit.grpc_server import GrpcServer
from headrace_kit.postgres import Database
from headrace_kit.redis import open_redis
from pydantic import SecretStr
from redis.asyncio import Redis
from run_worker.adapters.aftermath import Aftermath
from run_worker.adapters.claims import ClaimedRun, claim
from run_worker.adapters.ends import Ended, Ending, end_owned
from run_worker.adapters.executor_client import ExecutorHints
from run_worker.adapters.intake import Limits
from run_worker.adapters.owned import OwnedTasks
from run_worker.domain.transcript import TranscriptMessage
from run_worker.handlers.run_service import register
from run_worker.handlers.support import Control
from run_worker.loops.waits import RunWaits

from tests.support.servers import TestDatabase

TOKEN = "a-service-token"
CALL_SECONDS = 10.0
BODY_BYTES = 1_048_576
MANY = Limits(pending_per_user=200, pending_total=2000)

ADD_AGENT = """
INSERT INTO agents (name, digest) VALUES ('echo', 'd') ON CONFLICT (name) DO UPDATE SET updated_at = now()
"""
ADD_EXECUTOR = """
INSERT INTO executors (executor_id, control_id, host, pid, address, version, slots, lease_expires_at)
VALUES ($1, $2, 'here', 1, $3, 'test', 50, clock_timestamp() + interval '1 hour')
"""


class Client:
    """One user's calls."""

    def __init__(self, stub: rpc.RunServiceAsyncStub, uid: str) -> None:
        self.uid = uid
        self._stub = stub

    async def call(self, name: str, request: Any, *, seconds: float = CALL_SECONDS, **headers: str) -> Any:
        metadata = (*call_metadata(TOKEN, uid=self.uid), *headers.items())
        return await getattr(self._stub, name)(request, timeout=seconds, metadata=metadata)

    async def thread(self) -> str:
        answer = await self.call("CreateThread", pb.CreateThreadRequest(agent="echo"))
        return str(answer.thread.thread_id)

    async def get_thread(self, thread_id: str) -> run_pb2.Thread:
        answer: pb.GetThreadResponse = await self.call("GetThread", pb.GetThreadRequest(thread_id=thread_id))
        return answer.thread

    async def submit(self, thread_id: str, text: str = "hi", **fields: Any) -> run_pb2.Request:
        answer = await self.submit_answer(thread_id, text, **fields)
        return answer.request

    async def submit_answer(self, thread_id: str, text: str = "hi", **fields: Any) -> pb.SubmitRequestResponse:
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        request = pb.SubmitRequestRequest(**{"thread_id": thread_id, "input": body, **fields})
        answer: pb.SubmitRequestResponse = await self.call("SubmitRequest", request)
        return answer

    async def run(self, run_id: str) -> run_pb2.Run:
        answer: pb.GetRunResponse = await self.call("GetRun", pb.GetRunRequest(run_id=run_id))
        return answer.run

    async def cancel(self, run_id: str) -> run_pb2.Run:
        answer: pb.CancelRunResponse = await self.call("CancelRun", pb.CancelRunRequest(run_id=run_id))
        return answer.run


class HintRecorder(executor_service_pb2_grpc.ExecutorServiceServicer):
    """The hints that reach an executor; `cancels` and `wakes` are queues."""

    def __init__(self) -> None:
        self.cancels: asyncio.Queue[str] = asyncio.Queue()
        self.wakes: asyncio.Queue[None] = asyncio.Queue()

    async def Wake(self, request: Any, context: Any) -> executor_service_pb2.WakeResponse:  # noqa: N802  # proto
        self.wakes.put_nowait(None)
        return executor_service_pb2.WakeResponse(free_slots=1)

    async def HintCancel(self, request: Any, context: Any) -> executor_service_pb2.HintCancelResponse:  # noqa: N802  # proto
        self.cancels.put_nowait(request.run_id)
        return executor_service_pb2.HintCancelResponse(found=True)

    async def Drain(self, request: Any, context: Any) -> executor_service_pb2.DrainResponse:  # noqa: N802  # proto
        return executor_service_pb2.DrainResponse()

    async def Describe(self, request: Any, context: Any) -> executor_service_pb2.DescribeResponse:  # noqa: N802  # proto
        return executor_service_pb2.DescribeResponse()


@dataclass(slots=True)
class World:
    """A served RunService and what stands behind it."""

    control: Database
    executor: Database
    redis: Redis
    hints: ExecutorHints
    tasks: OwnedTasks
    aftermath: Aftermath
    waits: RunWaits
    address: str
    stub: rpc.RunServiceAsyncStub

    def client(self, uid: str = "") -> Client:
        """A user that no other test knows, unless named."""
        return Client(self.stub, uid or f"user-{uuid4()}")

    async def add_executor(self, *, control_id: UUID | None = None, address: str = "127.0.0.1:1") -> UUID:
        executor_id = uuid4()
        # As an executor starts: its row and its agents in one transaction.
        async with self.control.transaction() as connection:
            await connection.execute(ADD_EXECUTOR, executor_id, control_id or uuid4(), address)
            await connection.execute(ADD_AGENT)
        return executor_id

    async def claim_all(self, executor_id: UUID) -> list[ClaimedRun]:
        """Claim whatever is pending, as often as shares of live executors need."""
        claimed: list[ClaimedRun] = []
        while True:
            got, _ = await claim(self.executor, executor_id=executor_id, free=50, take_over=False, max_faults=3)
            if not got:
                return claimed
            claimed += got

    async def claim_one(self, executor_id: UUID, run_id: str) -> ClaimedRun:
        return next(run for run in await self.claim_all(executor_id) if str(run.run_id) == run_id)

    async def end(self, run: ClaimedRun, executor_id: UUID, *, state: str = "completed", text: str = "done") -> Ended:
        """End a claimed run as its owner."""
        message_id = f"m-{run.run_id}"
        completed = state == "completed"
        ending = Ending(
            state=state,  # type: ignore[arg-type]  # a word of the table
            error={"type": "graph_error", "message": "no", "details": {}} if state == "failed" else None,
            output_message_id=message_id if completed else None,
            interrupts=[{"id": "q", "value": "?"}] if state == "interrupted" else (),
            messages=[TranscriptMessage(message_id, "assistant", text)] if completed else (),
        )
        async with self.executor.transaction() as connection:
            ended = await end_owned(
                connection, run_id=run.run_id, attempt=run.attempt, owner=executor_id, last_n=1, ending=ending
            )
        assert ended is not None
        return ended


@asynccontextmanager
async def serve(database: TestDatabase, redis_url: str, folder: Path, *, limits: Limits = MANY) -> AsyncIterator[World]:
    """Serve RunService until the block ends."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({"test": sha256_hex(TOKEN)}))
    control = Database(dsn=database.dsn("control"), pool_max=8, application="test-control")
    graph_read = Database(dsn=database.dsn("graph_read"), pool_max=2, application="test-graph-read")
    executor = Database(dsn=database.dsn("executor"), pool_max=4, application="test-executor")
    for opened in (control, graph_read, executor):
        await opened.open()
    await control.execute(ADD_AGENT)
    redis = open_redis(redis_url, max_connections=8, client_name="test-control")
    tasks = OwnedTasks(limit=100)
    hints = ExecutorHints(token=SecretStr(TOKEN), tasks=tasks)
    aftermath = Aftermath(
        database=control,
        redis=redis,
        hints=hints,
        tasks=tasks,
        shards=1,
        stream_ttl_seconds=60,
        cancel_key_ttl_seconds=1800,
    )
    waits = RunWaits(control)
    polling = asyncio.create_task(waits.run())
    server = GrpcServer(service_name="run-worker", listen="127.0.0.1:0", tokens=TokenBook(tokens))
    register(
        server,
        Control(
            database=control,
            graph_read=graph_read,
            aftermath=aftermath,
            waits=waits,
            limits=limits,
            body_bytes=BODY_BYTES,
        ),
    )
    await server.start()
    channel = grpc.aio.insecure_channel(server.address)
    try:
        yield World(
            control=control,
            executor=executor,
            redis=redis,
            hints=hints,
            tasks=tasks,
            aftermath=aftermath,
            waits=waits,
            address=server.address,
            stub=rpc.RunServiceStub(channel),
        )
    finally:
        await channel.close()
        waits.close()
        await server.stop(grace_seconds=1.0)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        await tasks.close(seconds=2.0)
        await hints.close()
        await redis.aclose()
        for opened in (control, graph_read, executor):
            await opened.close()


@asynccontextmanager
async def recording_executor() -> AsyncIterator[tuple[HintRecorder, str]]:
    """An ExecutorService that records the hints it gets, and its address."""
    recorder = HintRecorder()
    server = GrpcServer(service_name="run-worker", listen="127.0.0.1:0", tokens=None)
    server.add(
        executor_service_pb2_grpc.add_ExecutorServiceServicer_to_server,
        recorder,
        "headrace.executor.v1.ExecutorService",
    )
    await server.start()
    try:
        yield recorder, server.address
    finally:
        await server.stop(grace_seconds=1.0)


async def error_of(call: Awaitable[Any]) -> ServiceError:
    """Return the typed error of a call that must be refused."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError(f"not refused: {answer}")


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 5.0) -> None:
    """Wait for something that another process or task brings about and that cannot be awaited."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  # nothing in this process knows the moment
            await asyncio.sleep(0.02)
