"""The gateway's own facts in PostgreSQL: prepared at start, and looked at again for every open stream.

Invariant: a stream whose key was revoked or has expired is broken within CHECK_SECONDS, while PostgreSQL answers.
"""

from __future__ import annotations

import asyncio

import structlog
from headrace_kit.errors import FailedPrecondition, ResourceExhausted, Unavailable

from api_gateway.adapters.keys_store import KeysStore
from api_gateway.domain.registry import StreamRegistry

CHECK_SECONDS = 5.0
"""The product's promise for open streams (specification of streams, access)."""
PREPARE_SECONDS = 0.5
"""Pause between tries at start: the database and its migrations may come after us."""
SCHEMA_GRACE_SECONDS = 60.0
"""How long a schema of another version is waited for; migrations run before services, so this is a late one."""

log = structlog.get_logger("headrace.gateway.keys")


async def prepare(keys: KeysStore, *, first_key_sha256: str, first_key_uid: str) -> None:
    """Return when the gateway can work with its database.

    Raises FailedPrecondition, with both numbers, for a schema that stays another version's.
    """
    loop = asyncio.get_running_loop()
    deadline, said = loop.time() + SCHEMA_GRACE_SECONDS, ""
    while True:
        try:
            await keys.prepare(first_key_sha256=first_key_sha256, first_key_uid=first_key_uid)
        except (FailedPrecondition, Unavailable, ResourceExhausted) as error:
            if isinstance(error, FailedPrecondition) and loop.time() > deadline:
                raise
            if error.reason != said:
                said = error.reason
                log.warning("waiting for the database", reason=error.reason, detail=error.message)
            await asyncio.sleep(PREPARE_SECONDS)
        else:
            log.info("database ready")
            return


async def watch(keys: KeysStore, streams: StreamRegistry, *, check_seconds: float = CHECK_SECONDS) -> None:
    """Break the streams of keys that ended; runs until cancelled."""
    while True:
        await asyncio.sleep(check_seconds)
        held = streams.key_ids()
        if not held:
            continue
        try:
            ended = held - await keys.valid(held)
        except (Unavailable, ResourceExhausted) as error:
            # The relay bounds how long anything streams without PostgreSQL.
            log.warning("keys of open streams not checked", reason=error.reason)
            continue
        if ended:
            log.info("breaking streams of ended keys", key_ids=sorted(ended))
            streams.break_keys(ended, "key_ended")
