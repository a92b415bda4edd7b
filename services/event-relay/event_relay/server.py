"""The composition root of event-relay: what it is made of, how it starts, runs and stops."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import structlog
from headrace.relay.v1 import relay_service_pb2_grpc as pb_grpc
from headrace_kit import budget as budgets
from headrace_kit import lifecycle, logs, telemetry
from headrace_kit.auth import TokenBook
from headrace_kit.grpc_server import GrpcServer
from headrace_kit.postgres import Database
from headrace_kit.redis import open_redis
from headrace_kit.settings import load
from redis.asyncio import Redis

from event_relay.adapters.redis_streams import PAGES_AT_ONCE, RedisStreams
from event_relay.adapters.run_views import RunViews
from event_relay.domain.book import TailBook
from event_relay.domain.ports import TailStrategy
from event_relay.handlers.follow import FULL_NAME, FollowService
from event_relay.loops.health import Health
from event_relay.loops.tails import PollingTails
from event_relay.loops.watch import Watch
from event_relay.settings import RelaySettings

SERVICE = "event-relay"
GRACE_SECONDS = 5.0
"""What streams that were told to end get to have it sent; a slow reader is cut after it."""

log = structlog.get_logger("event_relay.server")


@dataclass(frozen=True, slots=True)
class Relay:
    """Everything that a running relay holds."""

    book: TailBook
    database: Database
    redis: Redis
    server: GrpcServer
    tails: TailStrategy
    watch: Watch
    health: Health


async def startup(settings: RelaySettings) -> Relay:
    """Build the relay and serve, NOT_SERVING: nothing it depends on has to be there yet."""
    budget = budgets.load(settings.budget_file, executors=settings.executors)
    book = TailBook(budget.relay, shards=settings.redis_shards, clock=time.monotonic)
    database = Database(
        dsn=settings.relay_dsn.get_secret_value(),
        pool_max=budget.roles["relay"].pool_max(executors=settings.executors),
        application=SERVICE,
        back_pressure_seconds=budget.back_pressure_seconds,
    )
    await database.open()
    # One connection for the tails' read, one to spare for their checks, the rest for viewers that catch up.
    redis = open_redis(
        settings.redis_url.get_secret_value(),
        max_connections=min(budget.redis["pool_max"], PAGES_AT_ONCE + 2),
        client_name=SERVICE,
    )
    streams, runs = RedisStreams(redis), RunViews(database)
    server = GrpcServer(service_name=SERVICE, listen=settings.listen, tokens=TokenBook(settings.tokens_file))
    service = FollowService(book, streams, runs, relay=budget.relay, streams_max=budget.limits["streams_per_replica"])
    server.add(pb_grpc.add_RelayServiceServicer_to_server, service, FULL_NAME)
    await server.start()
    log.info("listening", address=server.address)
    return Relay(
        book=book,
        database=database,
        redis=redis,
        server=server,
        tails=PollingTails(book, streams, relay=budget.relay, shards=settings.redis_shards),
        watch=Watch(book, runs, probe_seconds=budget.relay["probe_seconds"]),
        health=Health(book, check=runs.check_schema, set_serving=server.set_serving),
    )


async def run(relay: Relay, stop: asyncio.Event) -> None:
    """Work until `stop`; then stop in the order of `shutdown`, the loops last but one, because streams need them."""
    ending = asyncio.Event()

    async def end_streams() -> None:
        await stop.wait()
        try:
            await shutdown(relay)
        finally:
            ending.set()

    owner = asyncio.create_task(end_streams(), name="end streams")
    try:
        await lifecycle.run_tasks(
            ending, {"tails": relay.tails.run(), "watch": relay.watch.run(), "health": relay.health.run()}
        )
    finally:
        stop.set()
        await owner


async def shutdown(relay: Relay) -> None:
    """Stop telling clients to come, tell those that are here to go elsewhere, then close the door."""
    # First, so that no balancer sends a viewer here that would be sent away at once.
    await relay.server.set_serving(False)
    # Our own event, before the server cuts: viewers get UNAVAILABLE behind a whole batch and go on by cursor.
    relay.book.stop()
    # Waits for the streams to say so; the loops still run, so nobody waits for a read.
    await relay.server.stop(grace_seconds=GRACE_SECONDS)


async def close(relay: Relay) -> None:
    """Close pools in reverse order of opening, after everything that uses them has ended."""
    await relay.redis.aclose()
    await relay.database.close()


async def main(stop: asyncio.Event) -> None:
    """Run the service until `stop`."""
    settings = load(RelaySettings)
    logs.setup(service=SERVICE, log_format=settings.log_format, log_level=settings.log_level)
    provider = telemetry.setup(service=SERVICE, data_dir=settings.data_dir)
    try:
        relay = await startup(settings)
        try:
            await run(relay, stop)
        finally:
            await close(relay)
    finally:
        # Last: the end of a stream is a span too.
        provider.shutdown()
