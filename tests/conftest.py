"""Fixtures for every test: the budget, real servers, a migrated database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from headrace_kit.budget import Budget
from headrace_kit.budget import load as load_budget

from tests.support.servers import Servers, TestDatabase

pytest_plugins = ["tests.support.guard", "tests.support.strict"]


@pytest.fixture(scope="session")
def budget_path() -> Path:
    return Path(__file__).resolve().parents[1] / "deploy" / "budget.toml"


@pytest.fixture(scope="session")
def budget(budget_path: Path) -> Budget:
    return load_budget(budget_path)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory, budget: Budget) -> Iterator[Servers]:
    started = Servers.start(tmp_path_factory.mktemp("servers"), budget=budget)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def redis_url(servers: Servers) -> str:
    return servers.redis_url


@pytest.fixture(scope="module")
async def database(servers: Servers, budget: Budget) -> AsyncIterator[TestDatabase]:
    created = await TestDatabase.create(servers.admin_dsn, budget=budget)
    yield created
    await created.drop(budget=budget)
