"""The agents that executors have published, and which of them are loaded now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace_kit.postgres import Database

# Each executor publishes all its agents when it starts: what is older than the oldest live one was removed since. While
# none lives, as in a restart, the last known count.
LOADED: Final = """updated_at >= coalesce(
  (SELECT min(started_at) FROM executors WHERE exited_at IS NULL AND lease_expires_at > now()), '-infinity')"""
"""The condition on a row of `agents`; whoever asks for an agent asks by this."""

LIST_AGENTS: Final = f"""
SELECT name, description, input_schema, output_schema, digest, updated_at
FROM agents WHERE name > $1 AND {LOADED}
ORDER BY name LIMIT $2
"""  # noqa: S608  # constants only

NAMES: Final = f"SELECT name FROM agents WHERE {LOADED} ORDER BY name LIMIT $1"  # noqa: S608  # constants only

NAMES_MAX: Final = 50
"""Names that an error lists: it must fit into a gRPC trailer."""


async def list_agents(database: Database, *, after: str, limit: int) -> Sequence[Any]:
    """Return the agents that live executors have published, by name, those behind `after`."""
    return await database.fetch(LIST_AGENTS, after, limit)


async def loaded_names(database: Database) -> list[str]:
    """Return the names of loaded agents, for an error that lists them: NAMES_MAX at most."""
    return [row["name"] for row in await database.fetch(NAMES, NAMES_MAX)]
