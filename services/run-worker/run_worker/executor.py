"""The executor process: claims runs and executes graphs. The composition root of `python -m run_worker executor`.

It is exec'ed by control, one per core, and ends when control does: end of file on an inherited pipe hands its leases
back. SIGTERM and Drain let short runs end first; SIGABRT writes every thread's stack to the log.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final
from uuid import UUID

import structlog
from headrace.executor.v1 import executor_service_pb2_grpc
from headrace_agent import close_session
from headrace_kit import budget as budgets
from headrace_kit import lifecycle, logs, telemetry
from headrace_kit.auth import TokenBook
from headrace_kit.budget import Budget
from headrace_kit.errors import ServiceError
from headrace_kit.grpc_server import GrpcServer
from headrace_kit.postgres import Database
from headrace_kit.redis import open_redis
from headrace_kit.settings import load
from opentelemetry import trace

from run_worker.adapters import leases
from run_worker.adapters.graph_tasks import guarded_task
from run_worker.adapters.graphs import Agent, builtin_file, load_graphs
from run_worker.adapters.node_threads import NodeThreads
from run_worker.adapters.process_exit import Deadline, control_pipe, keep_from_children, run_to_exit
from run_worker.adapters.published_agents import publish_agents
from run_worker.adapters.stream import ProjectionWriter
from run_worker.domain.limits import TimeLimits
from run_worker.handlers.executor_service import FULL_NAME, ExecutorServicer
from run_worker.loops.attempt import ExecutorParts, RunFigures, Stop
from run_worker.loops.cancel_watch import CancelWatch
from run_worker.loops.claim import Claimer
from run_worker.loops.flusher import Flusher
from run_worker.loops.renewal import Lease, LeaseFigures, LeaseKeeper, tick
from run_worker.loops.run_buffer import StreamLimits
from run_worker.loops.table import RunTable
from run_worker.settings import ExecutorSettings

HAND_BACK_SECONDS: Final = 8.0
"""How long a stopped executor waits for its runs to be handed back: a graph's rest (5 s) and the statement."""
SCHEMA_VERSION: Final = 2
"""run-worker's schema that this code is written for."""
GC_THRESHOLDS: Final = (20_000, 20, 50)
"""Allocations before a young collection, and collections before the next older one."""
GRPC_GRACE_SECONDS: Final = 1.0
"""Hints in flight at the end; nobody needs their answers."""

log = structlog.get_logger("headrace.executor")


@dataclass(frozen=True, slots=True)
class Running:
    """An executor that has started."""

    parts: ExecutorParts
    table: RunTable
    claimer: Claimer
    watch: CancelWatch
    server: GrpcServer
    keeper: LeaseKeeper
    drain_seconds: float


class Ends:
    """The ways in which an executor is told to end."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.stop = stop
        """SIGTERM, SIGINT or Drain: let short runs end first."""
        self.now = asyncio.Event()
        """Control is gone: hand everything back at once."""
        self.dead = asyncio.Event()
        """Control has declared this executor dead: its runs are others' already."""

    def control_gone(self) -> None:
        """End at once."""
        log.error("control is gone")
        self.now.set()
        self.stop.set()

    def declared_dead(self) -> None:
        """End at once, silently."""
        log.error("this executor was declared dead")
        self.dead.set()
        self.control_gone()


class _Held:
    """What the gRPC handlers may ask and tell."""

    def __init__(self, table: RunTable, claimer: Claimer, watch: CancelWatch, drain: asyncio.Event) -> None:
        self._table = table
        self._claimer = claimer
        self._watch = watch
        self._drain = drain

    @property
    def slots(self) -> int:
        return self._table.slots

    @property
    def free(self) -> int:
        return 0 if self._drain.is_set() else self._table.free

    def run_ids(self) -> list[UUID]:
        return [attempt.run_row.run_id for attempt in self._table.attempts()]

    def token_count(self) -> int:
        return self._table.token_count()

    def wake(self) -> None:
        self._claimer.wake()

    def drain(self) -> None:
        self._drain.set()

    async def check_cancel(self, run_id: UUID) -> bool:
        if self._table.get(run_id) is None:
            return False
        await self._watch.check([run_id])
        return True


def main() -> None:
    """Run one executor until SIGTERM, Drain, the end of control, or a defect."""
    # SIGABRT is how control asks a stuck executor for its stacks before it kills it.
    faulthandler.enable()
    keep_from_children()
    settings = load(ExecutorSettings)
    logs.setup(service="run-worker", log_format=settings.log_format, log_level=settings.log_level)
    structlog.contextvars.bind_contextvars(executor_id=str(settings.executor_id))
    provider = telemetry.setup(service="run-worker", data_dir=settings.data_dir, version=revision())
    threads, deadline = NodeThreads(settings.slots), Deadline()
    deadline.watch(settings.control_fd)

    async def work(stop: asyncio.Event) -> None:
        try:
            await serve(settings, stop, threads)
        finally:
            # A task that was left behind may refuse to end.
            deadline.begin()

    run_to_exit(lambda: lifecycle.run(work), deadline=deadline, flush=provider.shutdown)


def revision() -> str:
    """Return the version of this code."""
    try:
        return version("headrace-run-worker")
    except PackageNotFoundError:
        return "unknown"


async def serve(settings: ExecutorSettings, stop: asyncio.Event, threads: NodeThreads) -> None:
    """Start, work until `stop`, and end in order. Synchronous nodes run in `threads`."""
    ends = Ends(stop)
    asyncio.get_running_loop().set_default_executor(threads)
    asyncio.get_running_loop().set_task_factory(guarded_task)
    async with AsyncExitStack() as stack:
        # Ends last: until runs have ended they may call models.
        stack.push_async_callback(close_session)
        stack.enter_context(control_pipe(settings.control_fd, ends.control_gone))
        await _work(await _start(settings, ends, stack), ends)


async def _start(settings: ExecutorSettings, ends: Ends, stack: AsyncExitStack) -> Running:
    """Open pools, load graphs, listen, register and publish; `stack` closes what was opened, in reverse."""
    budget = budgets.load(settings.budget_file, executors=settings.executors)
    # One connection of the role's share is the lease thread's own.
    database = await stack.enter_async_context(
        _pool(settings, budget, "executor", settings.executor_dsn.get_secret_value(), reserved=1)
    )
    graph_database = await stack.enter_async_context(
        _pool(settings, budget, "graph", settings.graph_dsn.get_secret_value(), reserved=0)
    )
    redis = open_redis(
        settings.redis_url.get_secret_value(),
        max_connections=budget.redis["pool_max"],
        client_name=f"headrace-executor-{settings.executor_id}",
    )
    stack.push_async_callback(redis.aclose)
    await database.require_schema("run-worker", code_version=SCHEMA_VERSION)
    agents = await _load_agents(settings)

    stream = budget.stream
    writer = ProjectionWriter(redis, shards=settings.redis_shards, ttl_seconds=stream["ttl_seconds"])
    flusher = Flusher(
        writer, window_seconds=stream["merge_window_seconds"], window_max_seconds=stream["merge_window_max_seconds"]
    )
    runs = budget.runs
    table = RunTable(settings.slots)
    claimer = Claimer(table, poll_seconds=runs["claim_poll_seconds"], max_faults=runs["max_faults"])
    figures = lease_figures(budget)
    server = GrpcServer(service_name="run-worker", listen="127.0.0.1:0", tokens=TokenBook(settings.tokens_file))
    lease = Lease(figures, registered_at=time.monotonic())
    parts = ExecutorParts(
        executor_id=settings.executor_id,
        database=database,
        graph_database=graph_database,
        flusher=flusher,
        lease=lease,
        agents=agents,
        figures=run_figures(budget),
        stream_limits=stream_limits(budget),
        tracer=trace.get_tracer("headrace.executor"),
        revision=revision(),
        model=os.environ.get("HEADRACE_MODEL_NAME", ""),
        slot_freed=claimer.slot_freed,
    )
    watch = CancelWatch(
        parts,
        table,
        writer,
        redis_seconds=runs["cancel_redis_poll_seconds"],
        postgres_seconds=runs["cancel_postgres_poll_seconds"],
    )
    servicer = ExecutorServicer(executor_id=settings.executor_id, held=_Held(table, claimer, watch, ends.stop))
    server.add(executor_service_pb2_grpc.add_ExecutorServiceServicer_to_server, servicer, FULL_NAME)
    await server.start()
    stack.push_async_callback(server.stop, grace_seconds=GRPC_GRACE_SECONDS)

    lease.renewed(time.monotonic())
    async with database.transaction() as connection:
        await leases.register(
            connection,
            executor_id=settings.executor_id,
            control_id=settings.control_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            address=server.address,
            version=revision(),
            slots=settings.slots,
            lease_seconds=figures.lease,
        )
        await publish_agents(connection, agents.values())
    connection = leases.LeaseConnection(
        dsn=settings.executor_dsn.get_secret_value(), executor_id=settings.executor_id, lease_seconds=figures.lease
    )
    keeper = LeaseKeeper(lease, connection, on_dead=ends.declared_dead)
    keeper.start()
    # Ends after the work and before the pools: the lease must live while runs are handed back.
    stack.push_async_callback(keeper.stop)
    quiet_collector()
    await server.set_serving(True)
    log.info("executor ready", address=server.address, slots=settings.slots, agents=sorted(agents))
    return Running(parts, table, claimer, watch, server, keeper, drain_seconds=runs["drain_seconds"])


def quiet_collector() -> None:
    """Take what is loaded by now out of the garbage collector's rounds, and make those rarer.

    A run's events are many small objects that live for seconds; without this each of their generations scans all of
    LangChain too (measured: 62 against 37 us a token in the buffer and flusher).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _work(running: Running, ends: Ends) -> None:
    """Claim and execute until told to end; then drain while everything that runs need still works."""
    finished = asyncio.Event()
    tasks = {
        "tick": tick(running.parts.lease),
        "flusher": running.parts.flusher.run(),
        "claim": running.claimer.run(running.parts),
        "watch": running.watch.run(),
        "orphans": running.watch.sweep_orphans(running.claimer),
        "end": _end(running, ends, finished),
    }
    try:
        await lifecycle.run_tasks(finished, tasks)
    finally:
        # Only after a defect is anything left: cancelled attempts hand themselves back.
        await running.table.cancel_all()


async def _end(running: Running, ends: Ends, finished: asyncio.Event) -> None:
    """Wait for the end, then: stop claiming, let short runs end, hand the rest back."""
    await ends.stop.wait()
    running.claimer.draining = True
    await running.server.set_serving(False)
    if not ends.dead.is_set():
        try:
            await leases.mark_draining(running.parts.database, executor_id=running.parts.executor_id)
        except ServiceError as error:
            log.warning("draining_at not written", reason=error.reason)
    if not ends.now.is_set():
        log.info("draining", running=len(running.table.attempts()))
        empty = asyncio.create_task(running.table.wait_empty(running.drain_seconds), name="drain")
        gone = asyncio.create_task(ends.now.wait(), name="control gone")
        await asyncio.wait({empty, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (empty, gone):
            task.cancel()
        await asyncio.gather(empty, gone, return_exceptions=True)
    running.table.stop_all(Stop.LOST if ends.dead.is_set() else Stop.HAND_BACK)
    if not await running.table.wait_empty(HAND_BACK_SECONDS):
        log.error("runs left at exit", runs=len(running.table.attempts()))
    finished.set()
    # run_tasks cancels this one with the others.
    await asyncio.Event().wait()


async def _load_agents(settings: ExecutorSettings) -> dict[str, Agent]:
    agents, errors = await load_graphs([builtin_file(), *settings.graph_files()])
    for error in errors:
        log.error("graph not loaded", error=str(error))
    return agents


@asynccontextmanager
async def _pool(
    settings: ExecutorSettings, budget: Budget, role: str, dsn: str, *, reserved: int
) -> AsyncIterator[Database]:
    database = Database(
        dsn=dsn,
        pool_max=budget.roles[role].pool_max(executors=settings.executors, reserved=reserved),
        application=f"headrace-{role}",
        back_pressure_seconds=budget.back_pressure_seconds,
    )
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def lease_figures(budget: Budget) -> LeaseFigures:
    """Return the lease's figures of the budget file."""
    runs = budget.runs
    return LeaseFigures(
        lease=runs["lease_seconds"],
        renew=runs["renew_seconds"],
        margin=runs["lease_margin_seconds"],
        silence=runs["main_loop_silence_seconds"],
    )


def run_figures(budget: Budget) -> RunFigures:
    """Return a run's limits of the budget file."""
    runs = budget.runs
    return RunFigures(
        limits=TimeLimits(
            run=runs["run_timeout_seconds"],
            model_first_byte=runs["model_first_byte_seconds"],
            model_silence=runs["model_silence_seconds"],
            tool=runs["tool_timeout_seconds"],
        ),
        fault_back_off_seconds=tuple(runs["fault_back_off_seconds"]),
        max_faults=runs["max_faults"],
    )


def stream_limits(budget: Budget) -> StreamLimits:
    """Return the projection's limits of the budget file."""
    stream = budget.stream
    return StreamLimits(
        merge_bytes=stream["merge_bytes"],
        event_max_bytes=stream["event_max_bytes"],
        stream_max_bytes=stream["stream_max_bytes"],
        snapshot_every_bytes=stream["snapshot_every_bytes"],
        snapshot_every_events=stream["snapshot_every_events"],
        ring_seconds=stream["ring_seconds"],
    )
