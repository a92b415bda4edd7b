"""The connection budget is a fact of the database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
from headrace_deploy.roles import MIGRATE_ROLE, provision
from headrace_kit.budget import Budget, BudgetError

from tests.support.servers import Servers, TestDatabase

LIMITS = """
SELECT rolname, rolconnlimit, rolsuper OR rolcreaterole OR rolcreatedb AS mighty FROM pg_roles WHERE rolname LIKE $1
"""


@pytest.fixture
async def admin(servers: Servers) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(servers.admin_dsn)
    yield connection
    await connection.close()


async def test_the_limits_add_up_to_the_budget(
    admin: asyncpg.Connection, database: TestDatabase, budget: Budget
) -> None:
    """1. The roles of a deployment are read from the server. 2. Their limits add up to 450; none is mighty."""
    rows = await admin.fetch(LIMITS, f"{database.deployment}\\_%")
    limits = {row["rolname"].removeprefix(f"{database.deployment}_"): row["rolconnlimit"] for row in rows}
    limits.pop(MIGRATE_ROLE)
    assert limits == {role.name: role.limit for role in budget.roles.values()}
    assert sum(limits.values()) == budget.client_budget == 450
    assert not any(row["mighty"] for row in rows)


async def test_a_role_cannot_open_one_connection_over_its_limit(database: TestDatabase, budget: Budget) -> None:
    """1. A role opens all the connections of its share. 2. One more is refused. 3. One is closed, and it may again."""
    held = [await asyncpg.connect(database.dsn("graph_read")) for _ in range(budget.roles["graph_read"].limit)]
    try:
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await asyncpg.connect(database.dsn("graph_read"))
        await held.pop().close()
        # The server counts a closed session until its process has ended.
        for _attempt in range(100):
            try:
                held.append(await asyncpg.connect(database.dsn("graph_read")))
                break
            except asyncpg.TooManyConnectionsError:
                continue
        assert len(held) == budget.roles["graph_read"].limit
    finally:
        for connection in held:
            await connection.close()


async def test_a_role_has_its_time_limits(database: TestDatabase, budget: Budget) -> None:
    """1. A role logs in. 2. The budget file's limits hold in its session, without its doing."""
    connection = await asyncpg.connect(database.dsn("gateway"))
    try:
        for name, milliseconds in {
            "statement_timeout": budget.roles["gateway"].statement_timeout_ms,
            **{name: budget.session[f"{name}_ms"] for name in ("lock_timeout", "idle_in_transaction_session_timeout")},
        }.items():
            shown = await connection.fetchval("SELECT setting::int FROM pg_settings WHERE name = $1", name)
            assert shown == milliseconds, name
    finally:
        await connection.close()


async def test_a_role_reaches_only_its_own_deployment(servers: Servers, database: TestDatabase, budget: Budget) -> None:
    """1. Another deployment lives on the same server. 2. A role of the first is refused there, with or without TEMP."""
    other = await TestDatabase.create(servers.admin_dsn, budget=budget)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await asyncpg.connect(database.dsn("control"), database=other.deployment)
        connection = await asyncpg.connect(database.dsn("control"))
        try:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("CREATE TEMPORARY TABLE mine (n int)")
        finally:
            await connection.close()
    finally:
        await other.drop(budget=budget)


async def test_a_second_provision_updates_and_migrates_nothing(
    servers: Servers, database: TestDatabase, budget: Budget
) -> None:
    """1. Provision runs again with a new password. 2. Nothing is migrated; only the new password opens."""
    passwords = database.passwords | {"relay": "another"}
    applied = await provision(
        servers.admin_dsn,
        deployment=database.deployment,
        database=database.deployment,
        budget=budget,
        passwords=passwords,
    )
    assert applied == []
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(database.dsn("relay"))
    connection = await asyncpg.connect(database.dsn("relay").replace(database.passwords["relay"], "another"))
    await connection.close()


async def test_no_password_reaches_the_servers_log(servers: Servers, database: TestDatabase) -> None:
    """1. Roles were created. 2. No password of theirs is in the log of PostgreSQL, not even of a failed statement."""
    text = (servers.postgres.folder / "postgres.log").read_text()
    assert not [role for role, password in database.passwords.items() if password in text]


async def test_a_server_that_is_too_small_is_refused_with_the_table(
    servers: Servers, database: TestDatabase, budget: Budget
) -> None:
    """1. The budget asks for more than the server permits. 2. It is refused, and the table says who asks for what."""
    greedy = Budget(**{name: getattr(budget, name) for name in Budget.__slots__} | {"client_budget": 5000})
    with pytest.raises(BudgetError, match=r"permits 600 connections(.|\n)*gateway +60"):
        await provision(
            servers.admin_dsn, deployment="never", database="never", budget=greedy, passwords=database.passwords
        )
