"""The run-worker as it is deployed: control and executors as processes of their own, with a real graph."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb
from headrace.run.v1 import run_service_pb2_grpc as rpc
from headrace_deploy.servers import free_port
from headrace_kit.auth import sha256_hex
from headrace_kit.budget import Budget

from tests.integration.run_worker_control.world import TOKEN, Client, until
from tests.support.servers import TestDatabase

# Waits in a step of its own until the test says so; `steps` tells how often the input was applied.
GRAPH = """
import asyncio, os, pathlib
from typing import Annotated, TypedDict
import operator
from langgraph.graph import END, START, StateGraph

class State(TypedDict):
    steps: Annotated[list[str], operator.add]
    file: str

async def first(state):
    return {"steps": ["first"]}

async def wait(state):
    pathlib.Path(state["file"] + ".reached").touch()
    while not os.path.exists(state["file"]):
        await asyncio.sleep(0.02)
    return {"steps": ["waited"]}

builder = StateGraph(State)
builder.add_node("first", first)
builder.add_node("wait", wait)
builder.add_edge(START, "first")
builder.add_edge("first", "wait")
builder.add_edge("wait", END)
graph = builder.compile()
"""

CUT = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1"


@dataclass
class Running:
    """A started run-worker."""

    process: asyncio.subprocess.Process
    address: str
    folder: Path
    channel: grpc.aio.Channel

    def client(self) -> Client:
        return Client(rpc.RunServiceStub(self.channel), f"user-{uuid4()}")

    def executors(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    async def health(self) -> int | None:
        """What its health says; None while it does not listen."""
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2.0)
        except grpc.aio.AioRpcError:
            return None
        return int(answer.status)

    async def serving(self) -> bool:
        return await self.health() == health_pb2.HealthCheckResponse.SERVING


@asynccontextmanager
async def running(database: TestDatabase, redis_url: str, budget_path: Path, folder: Path) -> AsyncIterator[Running]:
    """Start a run-worker and wait until it is ready."""
    dsns = {role: database.dsn(role) for role in ("control", "graph_read", "executor", "graph")}
    async with launched(dsns, redis_url, budget_path, folder) as it:
        await until(it.serving, seconds=40)
        yield it


@asynccontextmanager
async def launched(dsns: Mapping[str, str], redis_url: str, budget_path: Path, folder: Path) -> AsyncIterator[Running]:
    """Start a run-worker; end it if it still runs."""
    (folder / "waits.py").write_text(GRAPH)
    (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": {"waits": "./waits.py:graph"}}))
    (folder / "tokens.json").write_text(json.dumps({"test": sha256_hex(TOKEN), "run-worker": sha256_hex("own")}))
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "LISTEN": address,
        "BUDGET_FILE": str(budget_path),
        "TOKENS_FILE": str(folder / "tokens.json"),
        "SERVICE_TOKEN": "own",
        "DATA_DIR": str(folder / "data"),
        "RUN_DIR": str(folder),
        "EXECUTORS": "2",
        "REDIS_URL": redis_url,
        "LANGGRAPH_JSON": str(folder / "langgraph.json"),
        **{f"{role.upper()}_DSN": dsn for role, dsn in dsns.items()},
    }
    with (folder / "log.txt").open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "run_worker",
            env={**os.environ, **{f"HEADRACE_{name}": value for name, value in settings.items()}},
            stderr=file,
        )  # fmt: skip
    async with grpc.aio.insecure_channel(address) as channel:
        it = Running(process, address, folder, channel)
        try:
            yield it
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(30):
                await process.wait()


@pytest.fixture
async def worker(
    database: TestDatabase, redis_url: str, budget_path: Path, budget: Budget, tmp_path: Path
) -> AsyncIterator[Running]:
    async with running(database, redis_url, budget_path, tmp_path) as it:
        yield it


async def submit(client: Client, file: Path) -> run_pb2.Request:
    answer = await client.call("CreateThread", pb.CreateThreadRequest(agent="waits"))
    body = json.dumps({"steps": [], "file": str(file)}).encode()
    request = await client.submit(answer.thread.thread_id, input=body, durability="sync")
    reached = file.with_name(file.name + ".reached")

    async def there() -> bool:
        return reached.exists()

    await until(there, seconds=20)
    return request


async def result(client: Client, run_id: str) -> tuple[run_pb2.Run, dict[str, Any]]:
    timeout = Duration(seconds=20)
    await client.call("WaitRun", pb.WaitRunRequest(run_id=run_id, timeout=timeout), seconds=25.0)
    answer = await client.call("GetRunResult", pb.GetRunResultRequest(run_id=run_id))
    return answer.run, json.loads(answer.values or b"{}")


async def test_a_run_survives_the_death_of_its_executor(worker: Running) -> None:
    """1. A run is in its second step.  2. kill -9 the executor that holds it.  3. Another attempt ends it, completed,
    and its first step was done once.
    """
    client = worker.client()
    file = worker.folder / "go"
    request = await submit(client, file)
    for executor in worker.executors():
        executor.kill()
    file.touch()
    run, values = await result(client, request.run_id)
    assert (run.state, run.attempt, run.faults) == (run_pb2.Run.STATE_COMPLETED, 2, 1)
    assert values["steps"] == ["first", "waited"]


async def test_cancel_reaches_a_running_run(worker: Running) -> None:
    """1. A run is in its second step.  2. Cancel.  3. It is cancelled within a second."""
    client = worker.client()
    request = await submit(client, worker.folder / "never")
    await client.cancel(request.run_id)
    async with asyncio.timeout(2):
        run, _ = await result(client, request.run_id)
    assert run.state == run_pb2.Run.STATE_CANCELLED


async def test_a_killed_control_comes_back_without_doubling(
    database: TestDatabase, redis_url: str, budget_path: Path, tmp_path: Path
) -> None:
    """1. A run is in its second step.  2. kill -9 control.  3. Its executors exit by themselves.
    4. The next control takes the lock, the run goes on and completes without a fault.
    """
    file = tmp_path / "go"
    async with running(database, redis_url, budget_path, tmp_path) as first:
        client = first.client()
        request = await submit(client, file)
        executors = first.executors()
        first.process.send_signal(signal.SIGKILL)
        gone, alive = await asyncio.to_thread(psutil.wait_procs, executors, timeout=20)
        assert (len(gone), alive) == (2, [])
    async with running(database, redis_url, budget_path, tmp_path) as second:
        again = Client(rpc.RunServiceStub(second.channel), client.uid)
        file.touch()
        run, values = await result(again, request.run_id)
    assert (run.state, run.faults) == (run_pb2.Run.STATE_COMPLETED, 0)
    assert values["steps"] == ["first", "waited"]


async def test_sigterm_hands_back_and_leaves_nothing(
    database: TestDatabase, redis_url: str, budget_path: Path, tmp_path: Path
) -> None:
    """1. Two executors idle.  2. SIGTERM.  3. Control exits with 0, its executors are gone, their rows say so."""
    async with running(database, redis_url, budget_path, tmp_path) as it:
        executors = it.executors()
        it.process.terminate()
        async with asyncio.timeout(20):
            code = await it.process.wait()
    assert code == 0
    assert len(executors) == 2
    assert not any(executor.is_running() for executor in executors)


async def test_control_outlives_the_cut_of_its_sessions(worker: Running, database: TestDatabase) -> None:
    """1. A client waits for a run, so that every loop asks PostgreSQL.  2. For 3 s all sessions of control are cut
    again and again.  3. The same process is ready again and answers; its executors are the same.
    """
    client = worker.client()
    request = await submit(client, worker.folder / "go")
    executors = [executor.pid for executor in worker.executors()]
    waiting = asyncio.create_task(result(client, request.run_id))
    owner = await asyncpg.connect(database.server_dsn)
    cut = 0
    try:
        for _ in range(100):
            cut += await owner.fetchval(CUT, f"{database.deployment}_control")
            await asyncio.sleep(0.03)  # the pace of the cuts
    finally:
        await owner.close()
    await until(worker.serving, seconds=10)
    (worker.folder / "go").touch()
    with suppress(grpc.aio.AioRpcError):
        await waiting  # may have met a cut itself
    run, _ = await result(client, request.run_id)
    assert cut >= 3  # each loop backs off after a cut
    assert worker.process.returncode is None
    assert [executor.pid for executor in worker.executors()] == executors
    assert (run.state, run.faults) == (run_pb2.Run.STATE_COMPLETED, 0)


async def test_it_waits_for_postgresql_and_can_be_stopped_meanwhile(
    redis_url: str, budget_path: Path, tmp_path: Path
) -> None:
    """1. Start without PostgreSQL.  2. It listens and says NOT_SERVING, and starts no executor.  3. SIGTERM ends it."""
    nowhere = dict.fromkeys(("control", "graph_read", "executor", "graph"), "postgresql://u@127.0.0.1:1/d")
    async with launched(nowhere, redis_url, budget_path, tmp_path) as it:

        async def listens() -> bool:
            return await it.health() is not None

        await until(listens, seconds=40)
        assert await it.health() == health_pb2.HealthCheckResponse.NOT_SERVING
        assert it.executors() == []
        it.process.terminate()
        async with asyncio.timeout(20):
            assert await it.process.wait() == 0
