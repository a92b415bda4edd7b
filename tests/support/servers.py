"""Real servers for tests: one private PostgreSQL and one private Redis per test process, one database per module."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from headrace_deploy.binaries import servers_choice
from headrace_deploy.roles import MIGRATE_ROLE, drop, generate_passwords, provision, role_dsn
from headrace_deploy.servers import Postgres, Redis
from headrace_kit.budget import Budget


@dataclass(frozen=True, slots=True)
class Servers:
    postgres: Postgres
    redis: Redis

    @classmethod
    def start(cls, folder: Path, *, budget: Budget) -> Servers:
        choice = servers_choice()
        servers = cls(
            Postgres.prepare(folder / "postgres", max_connections=budget.max_connections, choice=choice, durable=False),
            Redis.prepare(folder / "redis", choice=choice, durable=False),
        )
        servers.postgres.start()
        servers.redis.start()
        return servers

    def stop(self) -> None:
        self.redis.stop()
        self.postgres.stop()

    @property
    def admin_dsn(self) -> str:
        """The superuser's address of database `postgres`."""
        return self.postgres.dsn()

    @property
    def redis_url(self) -> str:
        return self.redis.url


@dataclass(frozen=True, slots=True)
class TestDatabase:
    """A freshly migrated database with the roles of the budget, all of them its own."""

    __test__ = False

    server_dsn: str
    deployment: str
    passwords: dict[str, str]

    @classmethod
    async def create(cls, server_dsn: str, *, budget: Budget) -> TestDatabase:
        deployment = f"t{secrets.token_hex(4)}"
        database = cls(server_dsn, deployment, generate_passwords(budget))
        await provision(
            server_dsn, deployment=deployment, database=deployment, budget=budget, passwords=database.passwords
        )
        return database

    async def drop(self, *, budget: Budget) -> None:
        await drop(self.server_dsn, deployment=self.deployment, database=self.deployment, budget=budget)

    def dsn(self, role: str) -> str:
        """The address for a role of the budget, as `control`."""
        return role_dsn(
            self.server_dsn,
            deployment=self.deployment,
            role=role,
            password=self.passwords[role],
            database=self.deployment,
        )

    @property
    def admin_dsn(self) -> str:
        """The owner's address: may read and change every table."""
        return self.dsn(MIGRATE_ROLE)
