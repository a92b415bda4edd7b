"""A relay per module on the module's database, with figures made for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from event_relay.settings import RelaySettings

from tests.integration.event_relay.world import World, changed_budget, settings, world
from tests.support.servers import Servers, TestDatabase

FAST = {"probe_seconds": 0.5, "settle_seconds": 0.3, "heartbeat_seconds": 0.5, "outage_seconds": 20.0}


@pytest.fixture(scope="module")
def relay_settings(
    servers: Servers, database: TestDatabase, budget_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> RelaySettings:
    folder = tmp_path_factory.mktemp("relay")
    return settings(
        folder,
        budget_file=changed_budget(budget_path, folder / "budget.toml", FAST),
        relay_dsn=database.dsn("relay"),
        redis_url=servers.redis_url,
    )


@pytest.fixture(scope="module")
async def shared(relay_settings: RelaySettings, database: TestDatabase) -> AsyncIterator[World]:
    async with world(relay_settings, admin_dsn=database.admin_dsn) as made:
        yield made


@pytest.fixture
async def here(shared: World) -> AsyncIterator[World]:
    """The module's relay; afterwards nobody follows."""
    yield shared
    await shared.stop_following()
