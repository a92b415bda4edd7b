"""Composition root of the sandbox-provisioner: the only place that builds its parts, and the order of start and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from headrace.sandbox.v1 import sandbox_service_pb2_grpc as pb_grpc
from headrace_kit import budget, lifecycle, logs, telemetry
from headrace_kit.auth import TokenBook
from headrace_kit.grpc_server import GrpcServer
from headrace_kit.postgres import Database
from headrace_kit.settings import load

from sandbox_provisioner.adapters.docker_engine import DockerEngine
from sandbox_provisioner.domain import subnets
from sandbox_provisioner.handlers.sandbox_service import FULL_NAME, SandboxService
from sandbox_provisioner.loops import detect, readiness
from sandbox_provisioner.settings import ProvisionerSettings

SERVICE = "sandbox-provisioner"

GRACE_SECONDS = 5.0
"""Calls in flight at a stop: each of today's ends within one engine probe."""

log = structlog.get_logger("headrace.sandbox")


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that has to be ended again."""

    end_tracing: Callable[[], None]
    """Exports what is left and waits for it."""
    database: Database
    engine: DockerEngine
    server: GrpcServer


async def startup(settings: ProvisionerSettings) -> Parts:
    """Build the parts and listen, NOT_SERVING. Nothing here waits for PostgreSQL or the engine."""
    figures = budget.load(settings.budget_file, executors=settings.executors)
    tracing = telemetry.setup(service=SERVICE, data_dir=settings.data_dir)
    database = Database(
        dsn=settings.provisioner_dsn.get_secret_value(),
        pool_max=figures.roles["provisioner"].pool_max(executors=settings.executors),
        application=SERVICE,
        back_pressure_seconds=figures.back_pressure_seconds,
    )
    await database.open()
    engine = DockerEngine(host=settings.docker_host, pool=settings.sandbox_pool)
    server = GrpcServer(service_name=SERVICE, listen=settings.listen, tokens=TokenBook(settings.tokens_file))
    servicer = SandboxService(engine, subnets=subnets.count(settings.sandbox_pool))
    server.add(pb_grpc.add_SandboxServiceServicer_to_server, servicer, FULL_NAME)
    await server.start()
    log.info("listening", address=server.address)
    return Parts(end_tracing=tracing.shutdown, database=database, engine=engine, server=server)


async def run(parts: Parts, stop: asyncio.Event) -> None:
    """Own the loops until `stop`. They end first: one of them would otherwise tell SERVING again."""
    await lifecycle.run_tasks(
        stop,
        {
            "readiness": readiness.watch(parts.database, parts.server),
            "detect": detect.detect(parts.engine),
        },
    )


async def shutdown(parts: Parts) -> None:
    """End the parts in the order in which they stop being needed."""
    await parts.server.set_serving(False)  # callers go elsewhere before the first call is refused
    await parts.server.stop(grace_seconds=GRACE_SECONDS)  # calls in flight still have their pool
    await parts.database.close()
    # Last, so that the spans of the calls above are exported; in a thread, as it waits for the exporter.
    await asyncio.to_thread(parts.end_tracing)


async def main(stop: asyncio.Event) -> None:
    """Run the service until `stop`.

    Raises SettingsError that lists every wrong variable, BudgetError when the figures do not hold.
    """
    settings = load(ProvisionerSettings)
    logs.setup(service=SERVICE, log_format=settings.log_format, log_level=settings.log_level)
    parts = await startup(settings)
    try:
        await run(parts, stop)
    finally:
        await shutdown(parts)
    log.info("stopped")
