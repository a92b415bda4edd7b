"""The composition root of the control process: builds it, runs it, and ends it without losing a run."""

from __future__ import annotations

import asyncio
import math
import sys
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import structlog
from headrace_kit import budget as budgets
from headrace_kit import logs, telemetry
from headrace_kit.auth import TokenBook
from headrace_kit.budget import Budget
from headrace_kit.errors import FailedPrecondition
from headrace_kit.grpc_server import GrpcServer
from headrace_kit.ids import new_id
from headrace_kit.lifecycle import run as run_until_signal
from headrace_kit.lifecycle import run_tasks, wait_or_stop
from headrace_kit.postgres import DATABASE_ERRORS, Database
from headrace_kit.redis import open_redis
from headrace_kit.settings import SettingsError, load
from opentelemetry.sdk.trace import TracerProvider
from redis.asyncio import Redis

from run_worker.adapters.aftermath import Aftermath
from run_worker.adapters.executor_client import ExecutorHints
from run_worker.adapters.executors import executors_of, why
from run_worker.adapters.intake import Limits
from run_worker.adapters.lock import ControlLock
from run_worker.adapters.owned import OwnedTasks
from run_worker.adapters.reclaims import FaultPolicy
from run_worker.handlers.run_service import register
from run_worker.handlers.support import Control
from run_worker.loops.contact import Contact
from run_worker.loops.reclaim import Reclaim
from run_worker.loops.roster import Roster
from run_worker.loops.spawn import Fleet
from run_worker.loops.waits import RunWaits
from run_worker.settings import ControlSettings

SERVICE: Final = "run-worker"
SCHEMA_VERSION: Final = 2
"""The newest migration that this code knows."""
SCHEMA_RETRY_SECONDS: Final = 0.5
OWNED_TASKS: Final = 1024
"""Hints and publications on their way; more than this means that Redis and executors answer nothing."""
EXIT_MARGIN_SECONDS: Final = 5.0
"""Beyond `drain_seconds`: an executor hands back what is left and closes its connections."""
GRACE_SECONDS: Final = 2.0
"""For calls in flight; waits have been answered before."""
RECLAIM_SECONDS: Final = 2.0
"""For the last exits to be written down; a next control finds what is left."""

log = structlog.get_logger("run_worker.control")


@dataclass(slots=True)
class Process:
    """A control process and what it is made of, in the order in which it was opened."""

    settings: ControlSettings
    budget: Budget
    control_id: UUID
    tracing: TracerProvider
    database: Database
    graph_read: Database
    redis: Redis
    tasks: OwnedTasks
    hints: ExecutorHints
    waits: RunWaits
    reclaim: Reclaim
    roster: Roster
    fleet: Fleet
    lock: ControlLock
    server: GrpcServer


def main() -> None:
    """Be the control process until SIGTERM or SIGINT."""
    run_until_signal(serve)


async def serve(stop: asyncio.Event) -> None:
    """Be a control process until `stop`."""
    try:
        settings = load(ControlSettings)
    except SettingsError as error:
        sys.exit(str(error))
    logs.setup(service=SERVICE, log_format=settings.log_format, log_level=settings.log_level)
    process = await startup(settings)
    try:
        await run(process, stop)
    finally:
        await shutdown(process)


async def startup(settings: ControlSettings) -> Process:
    """Build everything and listen, NOT_SERVING; nothing outside needs to be there yet."""
    budget = budgets.load(settings.budget_file, executors=settings.executors)
    tracing = telemetry.setup(service=SERVICE, data_dir=settings.data_dir)
    database = _database(budget, "control", settings.control_dsn.get_secret_value(), settings)
    graph_read = _database(budget, "graph_read", settings.graph_read_dsn.get_secret_value(), settings)
    await database.open()
    await graph_read.open()
    redis = open_redis(
        settings.redis_url.get_secret_value(),
        max_connections=budget.redis["pool_max"],
        client_name="headrace-control",
    )
    control_id = new_id()
    tasks = OwnedTasks(limit=OWNED_TASKS)
    hints = ExecutorHints(token=settings.service_token, tasks=tasks)
    aftermath = Aftermath(
        database=database,
        redis=redis,
        hints=hints,
        tasks=tasks,
        shards=settings.redis_shards,
        stream_ttl_seconds=budget.stream["ttl_seconds"],
        cancel_key_ttl_seconds=budget.runs["cancel_key_ttl_seconds"],
    )
    waits = RunWaits(database)
    contact = Contact(ttl_seconds=budget.runs["lease_seconds"])
    policy = FaultPolicy(
        max_faults=budget.runs["max_faults"], back_off_seconds=tuple(budget.runs["fault_back_off_seconds"])
    )
    reclaim = Reclaim(database=database, aftermath=aftermath, policy=policy, contact=contact)
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    lock = ControlLock(settings.run_dir)
    fleet = Fleet(
        settings=settings,
        control_id=control_id,
        slots=math.ceil(budget.slots["runs"] / settings.executors),
        lock_fd=lock.fd,
        exited=reclaim.exited,
    )
    server = GrpcServer(service_name=SERVICE, listen=settings.listen, tokens=TokenBook(settings.tokens_file))
    register(
        server,
        Control(
            database=database,
            graph_read=graph_read,
            aftermath=aftermath,
            waits=waits,
            limits=Limits(
                pending_per_user=budget.limits["pending_per_user"], pending_total=budget.limits["pending_total"]
            ),
            body_bytes=budget.limits["body_bytes"],
        ),
    )
    roster = Roster(database=database, hints=hints, contact=contact, set_serving=server.set_serving, judge=fleet.judge)
    await server.start()
    log.info("listening", address=server.address, control_id=str(control_id))
    return Process(
        settings, budget, control_id, tracing, database, graph_read, redis, tasks, hints, waits, reclaim, roster,
        fleet, lock, server,
    )  # fmt: skip


async def run(process: Process, stop: asyncio.Event) -> None:
    """Control runs and executors until `stop`, then drain the executors.

    Raises FailedPrecondition when the schema is not one of this code's.
    """
    if not await _schema_ready(process.database, stop):
        return
    had, former = await process.lock.acquire(process.control_id, stop)
    if not had:
        return
    # Its processes are gone, as the lock proves: what they owned need not wait for leases to run out.
    if former is not None:
        await _reclaim_former(process, former)
    halt = asyncio.Event()
    working = asyncio.create_task(
        run_tasks(
            halt,
            {
                "fleet": process.fleet.run(),
                "roster": process.roster.run(),
                "reclaim": process.reclaim.run(),
                "sweep": process.reclaim.sweep(),
                "waits": process.waits.run(),
            },
        ),
        name="working",
    )
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await _drain(process)
    finally:
        stopping.cancel()
        halt.set()
        await working


async def shutdown(process: Process) -> None:
    """End the process; everything that must be told has been told by `run`."""
    await process.roster.stop()
    # Waits first: they would use up the grace of everybody else.
    process.waits.close()
    await process.server.stop(grace_seconds=GRACE_SECONDS)
    # No call can start work any more: what is on its way gets a last moment, then pools close, last opened first.
    await process.tasks.close(seconds=GRACE_SECONDS)
    await process.hints.close()
    process.lock.close()
    await process.redis.aclose()
    await process.graph_read.close()
    await process.database.close()
    # Last, so that the spans of all of the above are written; in a thread, as it waits for the exporter.
    await asyncio.to_thread(process.tracing.shutdown)


async def _drain(process: Process) -> None:
    # Not ready first, so that no new client comes; calls go on meanwhile: intake is durable and cancels must work.
    await process.roster.stop()
    # Executors stop claiming, end what is short and hand the rest back.
    await process.fleet.drain(seconds=process.budget.runs["drain_seconds"] + EXIT_MARGIN_SECONDS)
    # What they left behind is given back before the loop that does it ends.
    try:
        async with asyncio.timeout(RECLAIM_SECONDS):
            await process.reclaim.settled()
    except TimeoutError:
        log.warning("executors' runs not all reclaimed; the next control does it")


async def _schema_ready(database: Database, stop: asyncio.Event) -> bool:
    while True:
        try:
            await database.require_schema(SERVICE, code_version=SCHEMA_VERSION)
        except FailedPrecondition:
            raise  # the schema is not this code's: waiting changes nothing
        except DATABASE_ERRORS as error:
            log.warning("PostgreSQL is not there yet", error=why(error))
        else:
            return True
        if await wait_or_stop(stop, SCHEMA_RETRY_SECONDS):
            return False


async def _reclaim_former(process: Process, former: UUID) -> None:
    try:
        for executor_id in await executors_of(process.database, control_id=former):
            process.reclaim.exited(executor_id, "exited with its control")
    except DATABASE_ERRORS as error:
        log.warning("former executors not read; their leases will run out", error=why(error))


def _database(budget: Budget, role: str, dsn: str, settings: ControlSettings) -> Database:
    return Database(
        dsn=dsn,
        pool_max=budget.roles[role].pool_max(executors=settings.executors),
        application=f"headrace {SERVICE} {role}",
        back_pressure_seconds=budget.back_pressure_seconds,
    )
