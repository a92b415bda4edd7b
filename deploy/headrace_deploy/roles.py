"""Database, roles and schema of one deployment: the connection budget becomes a fact of PostgreSQL here.

Invariant: every role may open exactly its share (`CONNECTION LIMIT`), reaches only its deployment's database, and
the owner's role (`<deployment>_migrate`) is used by migrations alone. Idempotent: each `up` runs it again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
from headrace_kit.budget import Budget, BudgetError, table
from headrace_kit.migrate import migrate, role_name

MIGRATE_ROLE = "migrate"
MIGRATE_CONNECTIONS = 5  # from the 150 that the client budget leaves free
SCRAM_ITERATIONS = 4096  # PostgreSQL's own default

_MAX_CONNECTIONS = "SELECT current_setting('max_connections')::int"
_ROLE_EXISTS = "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)"
_IS_SUPERUSER = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
_DATABASE_EXISTS = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)"
_CREATE_ROLE = "CREATE ROLE {role} NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION"
_ALTER_ROLE = "ALTER ROLE {role} LOGIN CONNECTION LIMIT {limit} PASSWORD '{verifier}'"
_SET = "ALTER ROLE {role} SET {name} = {value}"


def repository_root() -> Path:
    """Return the checkout that this file belongs to."""
    return Path(__file__).resolve().parents[2]


def find_budget(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the budget file: HEADRACE_BUDGET_FILE, else the checkout's."""
    return Path(environ.get("HEADRACE_BUDGET_FILE") or repository_root() / "deploy" / "budget.toml")


def migration_folders(root: Path | None = None) -> dict[str, Path]:
    """Return the folders of migrations by service, in the order in which they are applied."""
    root = root or repository_root()
    return {name: root / "services" / name / "migrations" for name in ("run-worker", "api-gateway")}


def generate_passwords(budget: Budget) -> dict[str, str]:
    """Return a new random password for each role of the budget and for the owner."""
    return {role: secrets.token_hex(24) for role in (MIGRATE_ROLE, *budget.roles)}


def role_dsn(server_dsn: str, *, deployment: str, role: str, password: str, database: str) -> str:
    """Return the address of `database` for a role, on the server that `server_dsn` names."""
    parts = urlsplit(server_dsn)
    hosts = parts.netloc.rpartition("@")[2]
    user = f"{role_name(deployment, role)}:{quote(password, safe='')}"
    return urlunsplit((parts.scheme, f"{user}@{hosts}", f"/{database}", parts.query, ""))


def scram_verifier(password: str) -> str:
    """Return what PostgreSQL stores for `password`, so that the password itself never enters a statement or its log."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, SCRAM_ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${SCRAM_ITERATIONS}:{encoded[0]}${encoded[1]}:{encoded[2]}"


async def provision(
    admin_dsn: str, *, deployment: str, database: str, budget: Budget, passwords: Mapping[str, str]
) -> list[str]:
    """Create or update roles and database, apply the migrations that are missing, and return their names.

    `admin_dsn` is a superuser's, or that of a role with CREATEROLE and CREATEDB. Raises BudgetError when the server
    permits fewer connections than the budget promises.
    """
    await _provision_roles(admin_dsn, deployment=deployment, database=database, budget=budget, passwords=passwords)
    owner = role_dsn(
        admin_dsn, deployment=deployment, role=MIGRATE_ROLE, password=passwords[MIGRATE_ROLE], database=database
    )
    return await migrate(owner, migration_folders(), deployment=deployment)


async def _provision_roles(
    admin_dsn: str, *, deployment: str, database: str, budget: Budget, passwords: Mapping[str, str]
) -> None:
    connection = await asyncpg.connect(admin_dsn, timeout=10)
    try:
        allowed = await connection.fetchval(_MAX_CONNECTIONS)
        if allowed < budget.client_budget + MIGRATE_CONNECTIONS:
            raise BudgetError(f"PostgreSQL permits {allowed} connections, the budget needs more\n{table(budget)}")
        limits = {MIGRATE_ROLE: MIGRATE_CONNECTIONS} | {role.name: role.limit for role in budget.roles.values()}
        for role, limit in limits.items():
            name = role_name(deployment, role)
            if not await connection.fetchval(_ROLE_EXISTS, name):
                await connection.execute(_CREATE_ROLE.format(role=_identifier(name)))
            verifier = scram_verifier(passwords[role])
            await connection.execute(_ALTER_ROLE.format(role=_identifier(name), limit=limit, verifier=verifier))
        for role_budget in budget.roles.values():
            settings = {
                "statement_timeout": role_budget.statement_timeout_ms,
                "lock_timeout": budget.session["lock_timeout_ms"],
                "idle_in_transaction_session_timeout": budget.session["idle_in_transaction_session_timeout_ms"],
            }
            for setting, value in settings.items():
                role_sql = _identifier(role_name(deployment, role_budget.name))
                await connection.execute(_SET.format(role=role_sql, name=setting, value=int(value)))
        await _provision_database(connection, deployment=deployment, database=database, roles=list(budget.roles))
    finally:
        await connection.close()


async def _provision_database(
    connection: asyncpg.Connection[asyncpg.Record], *, deployment: str, database: str, roles: list[str]
) -> None:
    owner = _identifier(role_name(deployment, MIGRATE_ROLE))
    if not await connection.fetchval(_IS_SUPERUSER):
        await connection.execute(f"GRANT {owner} TO CURRENT_USER")  # only a member may give a database to the owner
    if not await connection.fetchval(_DATABASE_EXISTS, database):
        await connection.execute(f"CREATE DATABASE {_identifier(database)} OWNER {owner}")
    everyone = ", ".join(_identifier(role_name(deployment, role)) for role in roles)
    await connection.execute(f"REVOKE CONNECT, TEMPORARY ON DATABASE {_identifier(database)} FROM PUBLIC")
    await connection.execute(f"GRANT CONNECT ON DATABASE {_identifier(database)} TO {everyone}")


async def drop(admin_dsn: str, *, deployment: str, database: str, budget: Budget) -> None:
    """Remove database and roles; sessions in it are cut. For tests."""
    connection = await asyncpg.connect(admin_dsn, timeout=10)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {_identifier(database)} WITH (FORCE)")
        for role in (MIGRATE_ROLE, *budget.roles):
            await connection.execute(f"DROP ROLE IF EXISTS {_identifier(role_name(deployment, role))}")
    finally:
        await connection.close()


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
