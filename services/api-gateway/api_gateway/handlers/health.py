"""/healthz (the process answers) and /readyz (it can do its job now, component by component)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_kit.errors import ServiceError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api_gateway.domain.registry import StreamRegistry
from api_gateway.handlers.http import answer

PROBE_SECONDS = 2.0
"""Bound of each component's probe."""
FRESH_SECONDS = 1.0
"""A report younger than this is told again: however many ask, components are probed once a second."""


@dataclass(frozen=True, slots=True)
class Component:
    """Something behind the gateway. `probe` returns when it works; without a required one the gateway is not ready."""

    probe: Callable[[], Awaitable[None]]
    required: bool = True


class Health:
    """The probes, asked by one caller at a time for all."""

    def __init__(self, components: Mapping[str, Component], streams: StreamRegistry, ready: asyncio.Event) -> None:
        self._components = components
        self._streams = streams
        self._ready = ready
        self._probing: asyncio.Task[dict[str, dict[str, Any]]] | None = None
        self._probed_at = 0.0

    def routes(self) -> list[Route]:
        """Return the routes; neither asks for a key."""
        return [Route("/healthz", self.healthz), Route("/readyz", self.readyz)]

    async def healthz(self, _request: Request) -> Response:
        """Say that the process lives."""
        return answer({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """Say what works: 200 when all that is required does, else 503 with the reasons."""
        components = await self._report()
        failed = [name for name, told in components.items() if told["status"] != "ok"]
        unready = [name for name in failed if components[name]["required"]]
        reasons = [f"{name}: {components[name]['reason']}" for name in failed]
        if not self._ready.is_set():
            unready.append("start")
            reasons.append("the database is not prepared yet")
        if self._streams.closing.is_set():
            unready.append("stop")
            reasons.append("this replica is stopping")
        body = {
            "status": "unavailable" if unready else "degraded" if failed else "ok",
            "reasons": reasons,
            "components": components,
            "open_streams": self._streams.count,
        }
        return answer(body, status=503 if unready else 200)

    async def _report(self) -> dict[str, dict[str, Any]]:
        now = asyncio.get_running_loop().time()
        stale = self._probing is None or (self._probing.done() and now - self._probed_at >= FRESH_SECONDS)
        if self._probing is None or stale:
            self._probed_at = now
            self._probing = asyncio.create_task(self._probe_all(), name="readiness")
        # One asker's disconnect must not cancel the probe of the others.
        return await asyncio.shield(self._probing)

    async def _probe_all(self) -> dict[str, dict[str, Any]]:
        told = await asyncio.gather(*(_probe(component) for component in self._components.values()))
        return dict(zip(self._components, told, strict=True))

    async def close(self) -> None:
        """End a probe that is under way."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)


async def _probe(component: Component) -> dict[str, Any]:
    reason = None
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await component.probe()
    except TimeoutError:
        reason = f"no answer within {PROBE_SECONDS:g} s"
    except ServiceError as error:
        reason = error.message
    status = "ok" if reason is None else "unavailable" if component.required else "degraded"
    return {"status": status, "required": component.required, "reason": reason}
