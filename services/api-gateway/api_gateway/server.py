"""The composition root: builds the gateway, runs it, and ends it in an order in which no client is misled."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import structlog
import uvicorn
from headrace_kit import budget, lifecycle, logs, settings, telemetry
from headrace_kit.grpc_client import open_channel
from headrace_kit.postgres import Database
from opentelemetry.sdk.trace import TracerProvider

from api_gateway.adapters.keys_store import KeysStore
from api_gateway.adapters.probes import require_serving
from api_gateway.adapters.relay_client import Pace, RelayClient
from api_gateway.adapters.rpc import Neighbour
from api_gateway.adapters.run_client import RunClient, open_run_channel
from api_gateway.domain.registry import StreamRegistry
from api_gateway.handlers.edge import Edge
from api_gateway.handlers.gate import Gate
from api_gateway.handlers.health import PROBE_SECONDS, Component, Health
from api_gateway.handlers.keys import Keys
from api_gateway.handlers.requests import Requests
from api_gateway.handlers.runs import Runs
from api_gateway.handlers.streams import Streams
from api_gateway.handlers.threads import Threads
from api_gateway.loops import key_watch
from api_gateway.settings import GatewaySettings

DRAIN_SECONDS = 5
"""How long answers in the making may take at a stop: half a call's deadline, streams having ended before."""
KEEP_ALIVE_SECONDS = 75
"""Longer than the 60 s of common reverse proxies, so that they close idle connections first, never into a request."""
BACKLOG = 2048
"""Connections that wait to be accepted: a reconnect of all viewers of a full replica."""
DEAD_PEER_MS = 30_000
"""A peer that acknowledges nothing for so long is gone: frees the streams of laptops that went to sleep."""

log = structlog.get_logger("headrace.gateway")


class _HttpServer(uvicorn.Server):
    """uvicorn, without its signal handlers: signals are the process's, and streams must be broken first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(slots=True)
class Gateway:
    """A running gateway and what it is made of."""

    address: str
    """host:port that it listens on."""
    streams: StreamRegistry
    ready: asyncio.Event
    """Set once the database is prepared."""
    _settings: GatewaySettings
    _keys: KeysStore
    _health: Health
    _http: _HttpServer
    _serving: asyncio.Task[None]
    _database: Database
    _channels: tuple[grpc.aio.Channel, ...]


async def startup(config: GatewaySettings) -> Gateway:
    """Open the listening socket and serve; nothing behind the gateway needs to be there yet.

    Raises OSError when the address is taken, BudgetError when the figures do not hold.
    """
    figures = budget.load(config.budget_file, executors=config.executors)
    limits, body_bytes = figures.limits, figures.limits["body_bytes"]
    token = config.service_token.get_secret_value()
    database = Database(
        dsn=config.gateway_dsn.get_secret_value(),
        pool_max=figures.roles["gateway"].pool_max(executors=config.executors),
        application="api-gateway",
        back_pressure_seconds=figures.back_pressure_seconds,
    )
    await database.open()
    run_channel = open_run_channel(config.run_worker_address)
    relay_channel = open_channel(config.event_relay_address)
    sandbox_channel = open_channel(config.sandbox_provisioner_address)

    pace = Pace(figures.relay["heartbeat_seconds"], figures.relay["outage_seconds"])
    ready = asyncio.Event()
    streams = StreamRegistry(per_user=limits["streams_per_user"], per_replica=limits["streams_per_replica"])
    keys = KeysStore(database)
    run_worker, event_relay = Neighbour("run-worker"), Neighbour("event-relay")
    sandboxes = Neighbour("sandbox-provisioner")
    runs = RunClient(run_channel, run_worker, token=token)
    relay = RelayClient(relay_channel, event_relay, token=token, pace=pace)
    gate = Gate(keys, ready)
    health = Health(
        {
            "postgres": Component(keys.ping),
            "run_worker": Component(lambda: require_serving(run_channel, run_worker, timeout=PROBE_SECONDS)),
            "event_relay": Component(lambda: require_serving(relay_channel, event_relay, timeout=PROBE_SECONDS)),
            "sandbox_provisioner": Component(
                lambda: require_serving(sandbox_channel, sandboxes, timeout=PROBE_SECONDS),
                required=False,
            ),
        },
        streams,
        ready,
    )
    event_streams = Streams(gate, runs, relay, streams, heartbeat_seconds=pace.heartbeat_seconds)
    app = Edge(
        [
            *health.routes(),
            *Threads(gate, runs, body_bytes=body_bytes).routes(),
            *Requests(gate, runs, event_streams, body_bytes=body_bytes).routes(),
            *Runs(gate, runs, streams).routes(),
            *event_streams.routes(),
            *Keys(gate, keys, body_bytes=body_bytes).routes(),
        ]
    )
    listener = _listen(config.listen)
    host, port = listener.getsockname()[:2]
    http = _HttpServer(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    )
    serving = asyncio.create_task(http.serve(sockets=[listener]), name="http")
    return Gateway(
        address=f"{host}:{port}",
        streams=streams,
        ready=ready,
        _settings=config,
        _keys=keys,
        _health=health,
        _http=http,
        _serving=serving,
        _database=database,
        _channels=(run_channel, relay_channel, sandbox_channel),
    )


async def run(gateway: Gateway, stop: asyncio.Event) -> None:
    """Work until `stop`.

    Raises what ended a part of it early.
    """
    await lifecycle.run_tasks(stop, {"http": _until_served(gateway), "keys": _keep_keys(gateway)})


async def shutdown(gateway: Gateway, provider: TracerProvider | None = None) -> None:
    """End the gateway."""
    # Streams first, broken, not closed: their clients go on elsewhere by their cursors. New ones are refused.
    gateway.streams.close()
    # Then what is in the making may end; uvicorn takes no new connections and bounds the wait.
    gateway._http.should_exit = True
    await asyncio.gather(gateway._serving, return_exceptions=True)
    # Nothing asks any more: what was asked through is closed, last opened first.
    await gateway._health.close()
    for channel in reversed(gateway._channels):
        await channel.close()
    await gateway._database.close()
    if provider is not None:
        # Last, so that the spans of all of the above are written; in a thread, as it waits for the exporter.
        await asyncio.to_thread(provider.shutdown)


async def main(stop: asyncio.Event) -> None:
    """Be the gateway's process until `stop`."""
    try:
        config = settings.load(GatewaySettings)
    except settings.SettingsError as error:
        sys.exit(str(error))
    logs.setup(service="api-gateway", log_format=config.log_format, log_level=config.log_level)
    _quiet_broken_streams()
    provider = telemetry.setup(service="api-gateway", data_dir=config.data_dir)
    gateway = await startup(config)
    log.info("listening", address=gateway.address)
    try:
        await run(gateway, stop)
    finally:
        await shutdown(gateway, provider)


async def _until_served(gateway: Gateway) -> None:
    # Shielded: a stop cancels this task, but the server is to end by itself, after the streams.
    await asyncio.shield(gateway._serving)


async def _keep_keys(gateway: Gateway) -> None:
    config = gateway._settings
    await key_watch.prepare(gateway._keys, first_key_sha256=config.first_key_sha256, first_key_uid=config.first_key_uid)
    gateway.ready.set()
    await key_watch.watch(gateway._keys, gateway.streams)


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit these two; together they end half-open and stalled ones.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        listener.bind((host.strip("[]"), int(port)))
        # From here on connections queue up, so that the address is true as soon as it is told.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _quiet_broken_streams() -> None:
    """Drop uvicorn's complaint about incomplete responses: they are how a stream is broken, and logged by us."""
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: record.getMessage() != "ASGI callable returned without completing response."
    )
