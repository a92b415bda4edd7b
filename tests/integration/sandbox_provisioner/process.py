"""The real sandbox-provisioner as a process, and real sockets that play the container engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web
from grpc_health.v1 import health_pb2
from headrace_kit.auth import call_metadata, sha256_hex
from headrace_kit.grpc_client import open_channel

TOKEN = "token-of-the-run-worker"
DEADLINE_SECONDS = 20.0
"""Bound of every wait in these tests; what is waited for comes in well under one second."""

METADATA = call_metadata(TOKEN, uid="ada")


@dataclass
class Process:
    """A running service: its address, and its log line by line."""

    process: asyncio.subprocess.Process
    channel: grpc.aio.Channel
    lines: list[dict[str, Any]]
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def logged(self, event: str, *, times: int = 1) -> dict[str, Any]:
        """Wait for the n-th line that tells `event`."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines if line.get("event") == event]

        async with asyncio.timeout(DEADLINE_SECONDS), self.grown:
            await self.grown.wait_for(lambda: len(found()) >= times)
        return found()[times - 1]

    async def health(self, service: str = "") -> int:
        """Ask for the health of a service of it, or of all; a probe has one second."""
        check = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        return (await check(health_pb2.HealthCheckRequest(service=service), timeout=1.0)).status

    async def stop(self) -> int:
        """Ask it to end; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def running(folder: Path, *, budget_path: Path, dsn: str, docker_host: str) -> AsyncIterator[Process]:
    """Start the service; it listens when this enters and is gone when this exits."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({"run-worker": sha256_hex(TOKEN)}))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sandbox_provisioner",
        stderr=asyncio.subprocess.PIPE,
        env={
            "PATH": os.environ["PATH"],
            "HEADRACE_BUDGET_FILE": str(budget_path),
            "HEADRACE_TOKENS_FILE": str(tokens),
            "HEADRACE_DATA_DIR": str(folder),
            "HEADRACE_PROVISIONER_DSN": dsn,
            "DOCKER_HOST": docker_host,
        },
    )
    assert process.stderr is not None
    async with asyncio.timeout(DEADLINE_SECONDS):
        first = json.loads(await process.stderr.readline())
    assert first["event"] == "listening"
    channel = open_channel(first["address"])
    service = Process(process, channel, [first])
    reader = asyncio.create_task(_read(process.stderr, service))
    try:
        yield service
    finally:
        await channel.close()
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reader


async def _read(stream: asyncio.StreamReader, service: Process) -> None:
    async for line in stream:
        async with service.grown:
            service.lines.append(json.loads(line))
            service.grown.notify_all()


@asynccontextmanager
async def stalled_engine(path: Path) -> AsyncIterator[asyncio.Event]:
    """Listen on a socket that accepts and never answers; the event tells the first connection."""
    accepted = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        accepted.set()

    server = await asyncio.start_unix_server(accept, path)
    try:
        yield accepted
    finally:
        server.close()
        for writer in writers:
            writer.close()


@asynccontextmanager
async def answering_engine(path: Path, *, subnets: list[str]) -> AsyncIterator[None]:
    """Speak the three answers of the Docker Engine API that a look at it needs, over a real unix socket."""

    async def answer(request: web.Request) -> web.Response:
        bodies: dict[str, Any] = {
            "version": {"Version": "27.1.2", "ApiVersion": "1.46", "MinAPIVersion": "1.24"},
            "info": {"ID": "engine-one"},
            "networks": [{"Name": "none", "IPAM": {"Config": None}}]
            + [{"Name": f"sbx-{n}", "IPAM": {"Config": [{"Subnet": subnet}]}} for n, subnet in enumerate(subnets)],
        }
        return web.json_response(bodies[request.path.rsplit("/", 1)[-1]])

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    try:
        yield
    finally:
        await runner.cleanup()
