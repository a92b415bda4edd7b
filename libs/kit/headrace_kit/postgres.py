"""PostgreSQL pools bound to the connection budget.

Invariant: a process never opens more of a role's connections than its share; a refusal by the server (53300) is
back-pressure, retried within a bound, and every wait for a connection is bounded.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg

from headrace_kit.errors import FailedPrecondition, ResourceExhausted, ServiceError, Unavailable

ACQUIRE_SECONDS = 5.0
"""How long a caller waits for a free connection of its own pool."""

AWAY_ERRORS = (
    OSError,
    asyncpg.InterfaceError,
    # A statement on a connection whose cut has been read and not yet been dealt with.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
"""What asyncpg and the network raise when the server is away; the same call may succeed later. InterfaceError is also
what it raises for mistakes of the caller: see `_is_mistake`."""

BUSY_ERRORS = (
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
"""A role's statement, lock or idle limit was reached, or a deadlock was broken: nothing was done, try again."""

DATABASE_ERRORS = (ServiceError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Whatever a call of this module may raise about the database: for loops that must outlive all of it (TimeoutError is
an OSError)."""


class Database:
    """One role's pool in one process. Opened on demand, bounded, and without a reset round trip on release."""

    def __init__(self, *, dsn: str, pool_max: int, application: str, back_pressure_seconds: float = 5.0) -> None:
        """Prepare a pool; nothing is connected before the first use. `application` shows in pg_stat_activity."""
        self.pool_max = pool_max
        self._dsn = dsn
        self._application = application
        self._back_pressure_seconds = back_pressure_seconds
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._stale = False

    async def open(self) -> None:
        """Create the pool, empty."""
        self._pool = await asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=self.pool_max,
            max_inactive_connection_lifetime=300.0,
            command_timeout=30.0,
            timeout=5.0,
            server_settings={"application_name": self._application, "timezone": "UTC", "jit": "off"},
            connect=self._connect,
            reset=_keep_session,
        )

    async def _connect(self, *args: Any, **kwargs: Any) -> Any:
        deadline = asyncio.get_running_loop().time() + self._back_pressure_seconds
        while True:
            try:
                return await asyncpg.connect(*args, **kwargs)
            except asyncpg.TooManyConnectionsError:
                if asyncio.get_running_loop().time() >= deadline:
                    raise
                await asyncio.sleep(random.uniform(0.05, 0.2))

    async def close(self) -> None:
        """Close the pool; connections still in use after 5 s are cut."""
        if self._pool is None:
            return
        try:
            async with asyncio.timeout(5.0):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """Borrow a connection.

        Raises ResourceExhausted when none is free in time, Unavailable when PostgreSQL is away.
        """
        if self._pool is None:
            raise Unavailable("the pool is not open", reason="POSTGRES_UNAVAILABLE")
        with self._translated():
            if self._stale:
                self._stale = False
                await self._pool.expire_connections()
            try:
                connection = await self._pool.acquire(timeout=ACQUIRE_SECONDS)
            except TimeoutError as error:
                raise ResourceExhausted(
                    "no database connection was free in time", reason="CONNECTION_POOL", retry_after_seconds=1.0
                ) from error
            try:
                yield connection
            except AWAY_ERRORS as error:
                # Cut while in use: asyncpg may not know that yet, and nobody may get such a connection again.
                if not _is_mistake(error):
                    connection.terminate()
                raise
            finally:
                await self._pool.release(connection)

    def renew_connections(self) -> None:
        """Replace every connection before its next use: the server turned out to be one that cannot do the job."""
        self._stale = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Borrow a connection inside a READ COMMITTED transaction; nothing else may be called while it is open."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except asyncpg.TooManyConnectionsError as error:
            raise ResourceExhausted(
                "the role's connection budget is used up", reason="CONNECTION_BUDGET", retry_after_seconds=1.0
            ) from error
        except asyncpg.ReadOnlySQLTransactionError as error:
            # A demoted primary: its connections are dropped so that the next ones find the new primary.
            self.renew_connections()
            raise Unavailable("PostgreSQL is read-only", reason="POSTGRES_READ_ONLY", retry_after_seconds=1) from error
        except BUSY_ERRORS as error:
            raise Unavailable(
                f"PostgreSQL is too busy ({type(error).__name__})", reason="POSTGRES_BUSY", retry_after_seconds=1.0
            ) from error
        except AWAY_ERRORS as error:
            if _is_mistake(error):
                raise
            raise Unavailable(
                f"PostgreSQL is away ({type(error).__name__})", reason="POSTGRES_UNAVAILABLE", retry_after_seconds=1.0
            ) from error

    async def fetch(self, sql: str, *args: Any) -> list[Any]:
        """Run one statement and return its rows."""
        async with self.connection() as connection:
            return list(await connection.fetch(sql, *args))

    async def fetchrow(self, sql: str, *args: Any) -> Any | None:
        """Run one statement and return its first row."""
        async with self.connection() as connection:
            return await connection.fetchrow(sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """Run one statement and return the first column of its first row."""
        async with self.connection() as connection:
            return await connection.fetchval(sql, *args)

    async def execute(self, sql: str, *args: Any) -> str:
        """Run one statement and return its command tag."""
        async with self.connection() as connection:
            return str(await connection.execute(sql, *args))

    async def require_schema(self, service: str, *, code_version: int) -> None:
        """Check that the schema is one that this code runs on: its own version N, or N + 1.

        Raises FailedPrecondition that shows both numbers (None before the first migration), Unavailable when PostgreSQL
        is away or does not let this role in yet.
        """
        try:
            found = await self.fetchval("SELECT max(version) FROM schema_migrations WHERE service = $1", service)
        except asyncpg.UndefinedTableError:
            found = None
        except asyncpg.PostgresError as error:
            raise Unavailable(
                f"PostgreSQL refused ({type(error).__name__})", reason="POSTGRES_REFUSED", retry_after_seconds=1.0
            ) from error
        if found not in (code_version, code_version + 1):
            raise FailedPrecondition(
                f"{service} runs on schema {code_version} or {code_version + 1}, the database has {found}; run migrate",
                reason="SCHEMA_VERSION",
                metadata={"code": str(code_version), "database": str(found)},
            )


def _is_mistake(error: BaseException) -> bool:
    """Say whether asyncpg refuses the call itself: a wrong DSN, or another number of parameters than the statement has.

    A parameter that cannot be encoded is a DataError, which is no InterfaceError.
    """
    return isinstance(error, ValueError) or str(error).startswith("the server expects")


async def _keep_session(_connection: Any) -> None:
    """Replace asyncpg's reset on release: no session state is ever set, and a reset costs a round trip a borrow."""
