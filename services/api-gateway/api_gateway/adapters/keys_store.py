"""Table api_keys. A key is found by its sha256 alone, one indexed row: neither its text nor its secret is stored."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, NoReturn

import asyncpg
import orjson
from headrace_kit.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from headrace_kit.postgres import Database

from api_gateway.domain.keys import FIRST_KEY_ID, ApiKey, Principal, with_implied

SCHEMA_VERSION = 1
"""The migration of services/api-gateway that this code is written for."""

_COLUMNS = "key_id, uid, scopes, label, created_at, expires_at, revoked_at"

_FIND = """
SELECT key_id, uid, scopes, expires_at FROM api_keys
WHERE key_sha256 = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
"""

_VALID = """
SELECT key_id FROM api_keys
WHERE key_id = ANY($1) AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
"""

# A revoked first key stays revoked until the environment names another one.
_FIRST = """
INSERT INTO api_keys AS k (key_id, uid, key_sha256, scopes, label)
SELECT $1, $2, $3, ARRAY['admin', 'write', 'read'], 'first key'
WHERE NOT EXISTS (SELECT 1 FROM api_keys WHERE key_sha256 = $3 AND key_id <> $1)
ON CONFLICT (key_id) DO UPDATE SET uid = excluded.uid, key_sha256 = excluded.key_sha256,
  revoked_at = CASE WHEN k.key_sha256 = excluded.key_sha256 THEN k.revoked_at END
"""

_INSERT = f"""
INSERT INTO api_keys (key_id, uid, key_sha256, scopes, label, expires_at)
VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $6)) RETURNING {_COLUMNS}
"""  # noqa: S608  # constants only

_LIST = f"""
SELECT {_COLUMNS} FROM api_keys
WHERE $1::timestamptz IS NULL OR (created_at, key_id) < ($1, $2)
ORDER BY created_at DESC, key_id DESC LIMIT $3
"""  # noqa: S608  # constants only

# All admin keys, in one order: two revokes go one after the other, and the second one's guard, a statement of its own
# with a younger snapshot, sees the first one's outcome. An insert can only add a key, so it need not wait.
_LOCK_ADMINS = "SELECT FROM api_keys WHERE 'admin' = ANY(scopes) AND revoked_at IS NULL ORDER BY key_id FOR UPDATE"

_REVOKE = """
UPDATE api_keys AS k SET revoked_at = coalesce(revoked_at, now())
WHERE key_id = $1 AND (
  revoked_at IS NOT NULL OR expires_at <= now() OR NOT 'admin' = ANY(scopes)
  OR EXISTS (
    SELECT 1 FROM api_keys AS other
    WHERE other.key_id <> k.key_id AND 'admin' = ANY(other.scopes) AND other.revoked_at IS NULL
      AND (other.expires_at IS NULL OR other.expires_at > now())
  )
) RETURNING key_id
"""

_EXISTS = "SELECT 1 FROM api_keys WHERE key_id = $1"


class KeysStore:
    """API keys in PostgreSQL, as role gateway."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prepare(self, *, first_key_sha256: str, first_key_uid: str) -> None:
        """Check the schema and make sure of the first key.

        Raises FailedPrecondition for a schema that this code cannot run on, Unavailable while there is no database.
        """
        try:
            await self._database.require_schema("api-gateway", code_version=SCHEMA_VERSION)
            if first_key_sha256:
                await self._database.execute(_FIRST, FIRST_KEY_ID, first_key_uid, bytes.fromhex(first_key_sha256))
        except asyncpg.PostgresError as error:
            # No such table, role or database yet: migrations and roles come from `make up`, in their own time.
            raise Unavailable(
                f"the database is not prepared ({type(error).__name__})", reason="SCHEMA_NOT_READY"
            ) from None

    async def ping(self) -> None:
        """Return when the database answers.

        Raises Unavailable or ResourceExhausted.
        """
        await self._database.fetchval("SELECT 1")

    async def find(self, digest: bytes) -> Principal | None:
        """Return whom a key speaks for; None when it is unknown, revoked or expired."""
        row = await self._database.fetchrow(_FIND, digest)
        if row is None:
            return None
        return Principal(row["key_id"], row["uid"], with_implied(row["scopes"]), row["expires_at"])

    async def valid(self, key_ids: Collection[str]) -> set[str]:
        """Return those of `key_ids` that are neither revoked nor expired."""
        return {row["key_id"] for row in await self._database.fetch(_VALID, list(key_ids))}

    async def insert(
        self, *, key_id: str, uid: str, digest: bytes, scopes: Collection[str], label: str, seconds: int | None
    ) -> ApiKey:
        """Add a key that lives `seconds`, or until it is revoked."""
        row = await self._database.fetchrow(_INSERT, key_id, uid, digest, list(scopes), label, seconds)
        return _api_key(row)

    async def list(self, *, page_size: int, page_token: str) -> tuple[list[ApiKey], str]:
        """Return a page of all keys, newest first, and the next page's token.

        Raises InvalidArgument for a token that no page gave.
        """
        created_at, key_id = _read_token(page_token)
        rows = await self._database.fetch(_LIST, created_at, key_id, page_size + 1)
        keys = [_api_key(row) for row in rows[:page_size]]
        more = len(rows) > page_size
        return keys, _write_token(keys[-1]) if more else ""

    async def revoke(self, key_id: str) -> None:
        """Revoke a key; a second time changes nothing.

        Raises NotFound; FailedPrecondition for the last valid admin key, without which nobody could make another.
        """
        if "\x00" in key_id:
            raise _not_found(key_id)
        async with self._database.transaction() as connection:
            await connection.execute(_LOCK_ADMINS)
            if await connection.fetchval(_REVOKE, key_id) is not None:
                return
            if await connection.fetchval(_EXISTS, key_id) is None:
                raise _not_found(key_id)
        raise FailedPrecondition(
            f'{key_id} is the last valid admin key: make another one first, by POST /v1/keys with scopes ["admin"]'
            " or `headrace keys create NAME --scope admin`, and revoke this one with it",
            reason="LAST_ADMIN_KEY",
            metadata={"key_id": key_id},
        )


def _not_found(key_id: str) -> NotFound:
    return NotFound(f"key {key_id[:64]!r} not found", reason="KEY_NOT_FOUND", metadata={"id": key_id[:64]})


def _api_key(row: Any) -> ApiKey:
    return ApiKey(**{**row, "scopes": tuple(row["scopes"])})


def _write_token(key: ApiKey) -> str:
    return orjson.dumps([key.created_at.isoformat(), key.key_id]).hex()


def _read_token(token: str) -> tuple[datetime | None, str | None]:
    if not token:
        return None, None
    try:
        created_at, key_id = orjson.loads(bytes.fromhex(token))
        if not isinstance(key_id, str) or "\x00" in key_id:
            _refuse_token()
        # Overflows in the first and last hours of the calendar, which the driver would refuse later.
        return datetime.fromisoformat(created_at).astimezone(UTC), key_id
    except (ValueError, TypeError, OverflowError):
        _refuse_token()


def _refuse_token() -> NoReturn:
    raise InvalidArgument(
        "page_token: is not one that a page of this list gave", reason="PAGE_TOKEN_INVALID", field="page_token"
    )
