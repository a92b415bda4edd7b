"""Keeps gRPC health true: SERVING while PostgreSQL answers with a schema that this code runs on, else NOT_SERVING.

The engine is no part of it: without one the service still does its job, which is then to say so.
"""

from __future__ import annotations

import asyncio

import structlog
from headrace_kit.errors import ServiceError
from headrace_kit.grpc_server import GrpcServer
from headrace_kit.postgres import Database

SCHEMA_SERVICE = "run-worker"
"""Owner of the view `run_lease_state`, the only thing that this service reads."""
SCHEMA_VERSION = 2
"""Number of the newest migration of SCHEMA_SERVICE that this code was written for."""

INTERVAL_SECONDS = 1.0
CHECK_SECONDS = 2.0
"""Bound of one check."""

log = structlog.get_logger("headrace.sandbox")


async def watch(database: Database, server: GrpcServer) -> None:
    """Check until cancelled; a change is logged with its reason."""
    serving: bool | None = None
    while True:
        problem = await _problem(database)
        if (problem == "") is not serving:
            serving = problem == ""
            await server.set_serving(serving)
            log.info("ready" if serving else "not ready", reason=problem or None)
        await asyncio.sleep(INTERVAL_SECONDS)


async def _problem(database: Database) -> str:
    """Return why the service cannot work, or nothing."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await database.require_schema(SCHEMA_SERVICE, code_version=SCHEMA_VERSION)
    except ServiceError as error:
        return error.message
    except TimeoutError:
        return f"PostgreSQL did not answer within {CHECK_SECONDS:g} s"
    return ""
