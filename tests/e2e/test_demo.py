"""`headrace demo` against the running product: what a newcomer sees first."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

NAMES = (
    "created_at",
    "started_at",
    "prepared_at",
    "first_output_at",
    "finished_at",
    "dispatch_latency_ms",
    "preparation_latency_ms",
    "model_first_output_latency_ms",
    "first_output_latency_ms",
    "total_latency_ms",
)


async def test_the_demo_streams_a_tool_call_and_shows_the_ten_names(stack: Stack) -> None:
    """
    1. The demo runs against a live stack.
    2. It shows the tool, the answer, the ten fixed names, the address and a curl line, and exits 0.
    """
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("headrace")),
        "demo",
        env={**os.environ, "HEADRACE_RUN_DIR": str(stack.run_dir), "COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    async with asyncio.timeout(50):
        shown = (await process.stdout.read()).decode()
        code = await process.wait()
    assert code == 0, shown
    for name in NAMES:
        assert name in shown
    assert "calculate" in shown
    assert stack.base_url in shown
    assert "curl -N" in shown
