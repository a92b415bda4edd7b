"""The first API key of a deployment: whether it still opens the API, as `make up` must not hand out a dead one."""

from __future__ import annotations

import asyncio
import hashlib

import asyncpg

from headrace_deploy.roles import MIGRATE_ROLE
from headrace_deploy.state import State

CONNECT_SECONDS = 5.0

_DEAD = """
SELECT EXISTS (SELECT FROM api_keys
  WHERE key_sha256 = $1 AND (revoked_at IS NOT NULL OR expires_at <= now()))
"""


def is_revoked(state: State) -> bool:
    """Return whether the key in the state was revoked; one that the gateway has not entered yet was not. Blocking.

    Raises OSError, TimeoutError or asyncpg.PostgresError when the database does not tell.
    """
    if not state.api_key:
        return False
    # With its own factory a Runner leaves the thread's current loop alone, which may be a test's.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(_is_dead(state.dsns[MIGRATE_ROLE], hashlib.sha256(state.api_key.encode()).digest()))


async def _is_dead(dsn: str, digest: bytes) -> bool:
    connection = await asyncpg.connect(dsn, timeout=CONNECT_SECONDS)
    try:
        return bool(await connection.fetchval(_DEAD, digest, timeout=CONNECT_SECONDS))
    finally:
        await connection.close()
