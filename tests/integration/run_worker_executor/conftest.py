"""One world per test, over the module's database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from headrace_kit.budget import Budget

from tests.integration.run_worker_executor.harness import World
from tests.support.servers import TestDatabase


@pytest.fixture
async def world(database: TestDatabase, redis_url: str, budget: Budget) -> AsyncIterator[World]:
    async with World(database, redis_url, budget).opened() as opened:
        yield opened
