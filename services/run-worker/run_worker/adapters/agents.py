"""The agents that executors have published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace_kit.postgres import Database

# Each executor publishes all its agents when it starts: what is older than the oldest live one was removed since. While
# none lives, as in a restart, the last known are told.
LIST_AGENTS: Final = """
SELECT name, description, input_schema, output_schema, digest, updated_at
FROM agents
WHERE name > $1 AND updated_at >= coalesce(
  (SELECT min(started_at) FROM executors WHERE exited_at IS NULL AND lease_expires_at > now()), '-infinity')
ORDER BY name LIMIT $2
"""


async def list_agents(database: Database, *, after: str, limit: int) -> Sequence[Any]:
    """Return the agents that live executors have published, by name, those behind `after`."""
    return await database.fetch(LIST_AGENTS, after, limit)
