"""Tells control which agents this executor has loaded: name, schemas, digest and settings in table `agents`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from run_worker.adapters.graphs import Agent
from run_worker.domain.encoding import json_text

PUBLISH = """
INSERT INTO agents (name, description, input_schema, output_schema, digest, settings)
SELECT a.name, a.description, a.input_schema, a.output_schema, a.digest, a.settings
FROM jsonb_to_recordset($1::jsonb) AS a (name text, description text, input_schema jsonb, output_schema jsonb,
  digest text, settings jsonb)
ORDER BY a.name
ON CONFLICT (name) DO UPDATE SET description = excluded.description, input_schema = excluded.input_schema,
  output_schema = excluded.output_schema, digest = excluded.digest, settings = excluded.settings, updated_at = now()
"""


async def publish_agents(connection: Any, agents: Iterable[Agent]) -> None:
    """Insert or renew the rows of these agents, in one statement; those of other executors stay.

    Every start renews `updated_at`: an agent that no live executor has published since its start is not loaded. Call it
    in the transaction that registers the executor, so that its agents are never older than it is.
    """
    rows = [
        {
            "name": agent.name,
            "description": agent.description,
            "input_schema": agent.input_schema,
            "output_schema": agent.output_schema,
            "digest": agent.digest,
            "settings": agent.settings.as_json(),
        }
        for agent in agents
    ]
    await connection.execute(PUBLISH, json_text(rows))
