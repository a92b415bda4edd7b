"""Migrations: numbered SQL files beside the service that owns the tables, applied once and in order, never at start.

`python -m headrace_kit.migrate run-worker=services/run-worker/migrations api-gateway=services/api-gateway/migrations`
with HEADRACE_MIGRATE_DSN and HEADRACE_DEPLOYMENT in the environment.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sys
from pathlib import Path

import asyncpg

LOCK_KEY = 0x48656164  # "Head": one advisory lock for all migrations of a database.

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_ROLE = re.compile(r"\{\{role:([a-z_]+)\}\}")

_CREATE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
  service text NOT NULL, version integer NOT NULL, name text NOT NULL, sha256 text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (service, version));
GRANT SELECT ON schema_migrations TO PUBLIC;
"""
_APPLIED = "SELECT version, sha256 FROM schema_migrations WHERE service = $1 ORDER BY version"
_RECORD = "INSERT INTO schema_migrations (service, version, name, sha256) VALUES ($1, $2, $3, $4)"


class MigrationError(RuntimeError):
    """A file is missing, changed after it was applied, or out of order."""


def role_name(deployment: str, role: str) -> str:
    """Return the cluster-wide name of a budget role, as `headrace_control`."""
    return f"{deployment}_{role}"


async def migrate(dsn: str, folders: dict[str, Path], *, deployment: str) -> list[str]:
    """Apply what is missing, one transaction a file with its version recorded inside; return the names applied.

    Raises MigrationError when an applied file has changed or a number is missing.
    """
    done: list[str] = []
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        await connection.execute(_CREATE)
        for service, folder in folders.items():
            applied = {row["version"]: row["sha256"] for row in await connection.fetch(_APPLIED, service)}
            files = sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))
            for expected, path in enumerate(files, start=1):
                version, text = int(path.name[:4]), path.read_text()
                digest = hashlib.sha256(text.encode()).hexdigest()
                if version != expected:
                    raise MigrationError(f"{service}: {path.name} should be number {expected:04d}")
                if version in applied:
                    if applied[version] != digest:
                        raise MigrationError(f"{service}: {path.name} was changed after it was applied")
                    continue
                sql = _ROLE.sub(lambda match: f'"{role_name(deployment, match[1])}"', text)
                async with connection.transaction():
                    await connection.execute(sql)
                    await connection.execute(_RECORD, service, version, path.name, digest)
                done.append(f"{service}/{path.name}")
    finally:
        await connection.close()
    return done


def main() -> None:
    """Run from the command line."""
    folders = dict(argument.split("=", 1) for argument in sys.argv[1:])
    names = asyncio.run(
        migrate(
            os.environ["HEADRACE_MIGRATE_DSN"],
            {service: Path(folder) for service, folder in folders.items()},
            deployment=os.environ.get("HEADRACE_DEPLOYMENT", "headrace"),
        )
    )
    print("\n".join(names) or "nothing to apply")


if __name__ == "__main__":
    main()
