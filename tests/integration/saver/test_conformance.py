"""The saver passes LangGraph's own suite against a real PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from headrace_kit.postgres import Database
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from run_worker.adapters.saver import PostgresSaver


async def test_every_capability_of_the_suite_passes(graph_database: Database) -> None:
    """1. The suite finds all capabilities in the saver. 2. Each of its tests passes."""

    @checkpointer_test(name="PostgresSaver")
    async def factory() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        yield PostgresSaver(graph_database)

    report = await validate(factory)

    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert {name for name, result in report.results.items() if result.passed} == {one.value for one in ALL_CAPABILITIES}
