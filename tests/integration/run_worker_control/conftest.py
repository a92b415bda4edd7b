"""One served RunService per module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.run_worker_control.world import World, serve
from tests.support.servers import TestDatabase


@pytest.fixture(scope="module")
async def world(
    database: TestDatabase, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with serve(database, redis_url, tmp_path_factory.mktemp("run-worker")) as served:
        yield served
