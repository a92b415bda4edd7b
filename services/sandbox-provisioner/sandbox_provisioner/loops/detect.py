"""Looks at the container engine again and again, and logs when what it found has changed."""

from __future__ import annotations

import asyncio

import structlog

from sandbox_provisioner.adapters.docker_engine import DockerEngine
from sandbox_provisioner.domain.report import EngineReport

INTERVAL_SECONDS = 10.0
"""An engine that starts or dies is noticed within this: the reconciliation interval that sandboxes will have."""

log = structlog.get_logger("headrace.sandbox")


async def detect(engine: DockerEngine) -> None:
    """Probe until cancelled."""
    told: EngineReport | None = None
    while True:
        report = await engine.probe()
        if told is None or (report.engine, report.problem) != (told.engine, told.problem):
            log.info(
                "engine", host=report.host, engine=report.engine, version=report.version, problem=report.problem or None
            )
        told = report
        await asyncio.sleep(INTERVAL_SECONDS)
