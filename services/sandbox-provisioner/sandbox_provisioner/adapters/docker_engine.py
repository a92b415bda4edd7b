"""The Docker engine, looked at through the `docker` SDK.

Invariant: the SDK blocks, so it never runs on the event loop: each call has a daemon thread, at most THREADS of them at
a time, and its caller waits no longer than PROBE_SECONDS. An engine that never answers costs a thread, never the loop,
never the end of the process.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from ipaddress import IPv4Network
from typing import Any, TypeVar

import docker
import docker.errors
from docker.constants import DEFAULT_DOCKER_API_VERSION

from sandbox_provisioner.domain import subnets
from sandbox_provisioner.domain.report import EngineReport

PROBE_SECONDS = 2
"""Bound of one look at the engine; a local daemon answers the three calls in milliseconds."""

THREADS = 2
"""Blocking calls at a time: one, and one more while a first is stuck in a read that PROBE_SECONDS has not ended yet."""

T = TypeVar("T")


class DaemonThreads:
    """Runs blocking calls for the event loop, at most `size` at a time; a stuck one keeps its place until it ends."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)

    async def call(self, work: Callable[[], T], *, name: str) -> T:
        """Return what `work()` returns, or raise what it raises; the caller bounds the wait, the thread runs on."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: Exception | None) -> None:
            self._free.release()
            if answer.done():  # the caller has gone
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # T may itself be Optional; no error means a T

        def body() -> None:
            result: T | None = None
            error: Exception | None = None
            try:
                result = work()
            except Exception as raised:  # noqa: BLE001  # carried to the caller, who raises it
                error = raised
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop has closed: the process ends and nobody waits
                return

        threading.Thread(target=body, name=name, daemon=True).start()
        return await answer


class DockerEngine:
    """One engine by its address. `probe` looks; `latest` waits for the first look and then answers at once."""

    def __init__(self, *, host: str, pool: IPv4Network) -> None:
        self.host = host
        self._pool = pool
        self._threads = DaemonThreads(THREADS)
        self._report: EngineReport | None = None
        self._seen = asyncio.Event()

    async def probe(self) -> EngineReport:
        """Look at the engine once, at most PROBE_SECONDS, and keep the report. Never raises: a failure is a report."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                report = await self._threads.call(self._look, name="docker-probe")
        except (docker.errors.DockerException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            # The HTTP client beneath the SDK raises OSErrors; JSON of another shape raises the last four.
            report = EngineReport(host=self.host, problem=_cause(error))
        self._report = report
        self._seen.set()
        return report

    async def latest(self) -> EngineReport:
        """Return the newest report; the wait for a first one is bounded by its probe."""
        with suppress(TimeoutError):  # told as a problem
            async with asyncio.timeout(PROBE_SECONDS + 1):
                await self._seen.wait()
        return self._report or EngineReport(host=self.host, problem="it has not been looked at yet")

    def _client(self, api_version: str) -> docker.APIClient:
        return docker.APIClient(base_url=self.host, version=api_version, timeout=PROBE_SECONDS)

    def _look(self) -> EngineReport:
        # The SDK leaks a socket that it cannot connect, and with `version="auto"` one that its constructor asked on: so
        # somebody must listen first, and there are two clients that are both closed.
        if self.host.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as knock:
                knock.settimeout(PROBE_SECONDS)
                knock.connect(self.host.removeprefix("unix://"))
        with closing(self._client(DEFAULT_DOCKER_API_VERSION)) as client:
            version: dict[str, Any] = client.version(api_version=False)
        with closing(self._client(version["ApiVersion"])) as client:
            info: dict[str, Any] = client.info()
            networks: list[dict[str, Any]] = client.networks()
        return EngineReport(
            host=self.host,
            engine="docker",
            version=str(version.get("Version", "")),
            engine_id=str(info.get("ID", "")),
            subnets_free=subnets.count_free(self._pool, _subnets_of(networks)),
        )


def _subnets_of(networks: list[dict[str, Any]]) -> list[str]:
    configs = [config for network in networks for config in (network.get("IPAM") or {}).get("Config") or ()]
    return [str(config.get("Subnet") or "") for config in configs]


def _cause(error: BaseException) -> str:
    """Name what was wrong: the SDK wraps `No such file or directory` in three sentences of its own."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, TimeoutError):  # ours, or the HTTP client's, whichever comes first
            return f"it did not answer within {PROBE_SECONDS} s"
        if isinstance(link, OSError) and link.strerror:
            return link.strerror
        link = link.__cause__ or link.__context__
    return f"it does not talk as one ({type(error.__cause__ or error).__name__})"
