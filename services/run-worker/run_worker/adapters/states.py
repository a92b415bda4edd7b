"""What a thread's checkpoints hold, as JSON, read with the role graph_read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from headrace_kit.postgres import Database
from langchain_core.runnables import RunnableConfig

from run_worker.adapters.saver import PostgresSaver
from run_worker.domain.encoding import json_bytes

_BRANCH: Final = "branch:to:"
_START: Final = "__start__"
_TASKS: Final = "__pregel_tasks"


@dataclass(frozen=True, slots=True)
class ThreadState:
    """Values of a checkpoint as a JSON object, the nodes that would run next, and its id; all empty without one."""

    values: bytes
    next: tuple[str, ...]
    checkpoint_id: str


async def read_state(database: Database, *, thread_id: UUID, checkpoint_id: str = "") -> ThreadState:
    """Read the thread's latest checkpoint, or the one named."""
    configurable: dict[str, Any] = {"thread_id": str(thread_id), "checkpoint_ns": ""}
    if checkpoint_id:
        configurable["checkpoint_id"] = checkpoint_id
    config: RunnableConfig = {"configurable": configurable}
    found = await PostgresSaver(database).aget_tuple(config)
    if found is None:
        return ThreadState(b"{}", (), "")
    channels: Mapping[str, Any] = found.checkpoint["channel_values"]
    values = {name: value for name, value in channels.items() if not _internal(name)}
    return ThreadState(json_bytes(values), _next(channels), str(found.checkpoint["id"]))


def _internal(channel: str) -> bool:
    return channel.startswith(("__", _BRANCH))


def _next(channels: Mapping[str, Any]) -> tuple[str, ...]:
    # A node's trigger channel holds a value from the step that wrote it until the step that runs the node.
    names = [name.removeprefix(_BRANCH) for name in channels if name.startswith(_BRANCH)]
    if _START in channels:
        names.append(_START)
    names += [node for task in channels.get(_TASKS) or () if isinstance(node := getattr(task, "node", None), str)]
    return tuple(sorted(set(names)))
