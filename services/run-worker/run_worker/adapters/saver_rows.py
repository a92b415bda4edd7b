"""Between checkpoints as LangGraph holds them and rows as the official table layout stores them; no database here.

A channel's value is inline in the checkpoint's JSON if JSON gives back exactly what it got, else a blob of its version.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

INLINE_CHARACTERS = 256
"""Longer strings are blobs: a blob is stored once per version, an inline value again with each checkpoint."""

INLINE_INTEGER = 2**53
"""Larger integers are blobs: other readers of the JSON take numbers for doubles."""

_NOT_IN_JSONB = re.compile("[\x00\ud800-\udfff]")


def is_inline(value: Any) -> bool:
    """Return whether a channel's value may live in the checkpoint's JSON.

    Floats may not: jsonb prints 1e22 as an integer and knows no NaN. Subclasses (enums) would come back as their base.
    """
    if value is None or value is True or value is False:
        return True
    if type(value) is int:
        return -INLINE_INTEGER < value < INLINE_INTEGER
    return type(value) is str and len(value) <= INLINE_CHARACTERS and _NOT_IN_JSONB.search(value) is None


def to_json(value: Any) -> str:
    """Return JSON that PostgreSQL takes: NUL and lone surrogates become U+FFFD, NaN and infinities become null."""
    return json.dumps(_clean(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_IN_JSONB.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def checkpoint_json(checkpoint: Checkpoint) -> str:
    """Return the checkpoint's JSON, with inline values only."""
    values = {name: value for name, value in checkpoint["channel_values"].items() if is_inline(value)}
    return to_json({**checkpoint, "channel_values": values})


def blob_columns(
    checkpoint: Checkpoint, new_versions: Mapping[str, str | int | float], serde: SerializerProtocol
) -> tuple[list[str], list[str], list[str], list[bytes]]:
    """Return channel, version, type and blob of the values that are new and not inline, column by column."""
    channels: list[str] = []
    versions: list[str] = []
    types: list[str] = []
    blobs: list[bytes] = []
    values = checkpoint["channel_values"]
    for channel, version in new_versions.items():
        if channel in values and not is_inline(values[channel]):
            kind, blob = serde.dumps_typed(values[channel])
            channels.append(channel)
            versions.append(str(version))
            types.append(kind)
            blobs.append(blob)
    return channels, versions, types, blobs


def config_of(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> RunnableConfig:
    """Return the config that names one checkpoint."""
    return {
        "configurable": {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint_id},
    }


def tuple_of(row: Any, serde: SerializerProtocol) -> CheckpointTuple:
    """Return the checkpoint tuple of a row with its aggregated `blobs` and `writes`.

    Where the writer was fenced, `metadata["run_id"]` is the run that the fence named, whatever the config had said.
    """
    checkpoint = cast(Checkpoint, json.loads(row["checkpoint"]))
    blobs: Iterable[tuple[str, str, bytes]] = row["blobs"] or ()
    checkpoint["channel_values"] = {
        **(checkpoint.get("channel_values") or {}),
        # "empty" marks a channel without a value in rows that the official saver wrote.
        **{channel: serde.loads_typed((kind, blob)) for channel, kind, blob in blobs if kind != "empty"},
    }
    metadata = cast(CheckpointMetadata, json.loads(row["metadata"]))
    if row["attempt"] is not None:
        metadata["run_id"] = str(row["run_id"])
    writes: Sequence[tuple[str, str, str, bytes]] = row["writes"] or ()
    thread_id, namespace, parent = row["thread_id"], row["checkpoint_ns"], row["parent_checkpoint_id"]
    return CheckpointTuple(
        config=config_of(thread_id, namespace, row["checkpoint_id"]),
        checkpoint=checkpoint,
        metadata=metadata,
        parent_config=config_of(thread_id, namespace, parent) if parent else None,
        pending_writes=[(task, channel, serde.loads_typed((kind, blob))) for task, channel, kind, blob in writes],
    )


def run_id_of(metadata: CheckpointMetadata) -> UUID | None:
    """Return the run that unfenced metadata names, if its id is one of ours."""
    try:
        return UUID(str(metadata.get("run_id")))
    except ValueError:
        return None
