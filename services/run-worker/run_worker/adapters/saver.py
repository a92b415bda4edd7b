"""LangGraph checkpoints in PostgreSQL, on the role's own pool and behind the run's fence.

Invariant: with a fence, a row is written only while `runs` says that this attempt and owner run. The run's row is
locked FOR SHARE in the same statement, so a takeover either waits for the write or makes it lose.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import UUID

from headrace_kit.postgres import Database
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from run_worker.adapters import saver_rows, saver_upkeep

LIST_PAGE = 64
"""Rows fetched at once by `alist`: a long history takes bounded memory and holds no connection between pages."""

REMEMBERED_CHECKPOINTS = 1024
"""How many durable checkpoints `durable` remembers; a tool asks for the newest one or two."""


@dataclass(frozen=True)
class Fence:
    """Who may write: one attempt of a run, and the executor that owns it."""

    run_id: UUID
    attempt: int
    owner: UUID


class FenceLost(Exception):
    """Another attempt owns the run, or it has ended: nothing was written, and nothing may be told."""


# Both forms take $1 run_id, $2 attempt, $3 owner. A bare EXISTS would lose to a takeover that commits in between; FOR
# SHARE waits for it and then reads its row again.
_GUARDED = """
WITH guard AS MATERIALIZED (
  SELECT 1 FROM runs WHERE run_id = $1::uuid AND attempt = $2::integer AND lease_owner = $3::uuid AND state = 'running'
  FOR SHARE
)"""
_UNGUARDED = """
WITH guard AS MATERIALIZED (SELECT 1 WHERE $1::uuid IS NULL AND $2::integer IS NULL AND $3::uuid IS NULL)"""

_SELECT = """
SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.checkpoint, c.metadata, c.seq, c.run_id,
  c.attempt,
  (SELECT array_agg(ROW (b.channel, b.type, b.blob))
   FROM jsonb_each_text(c.checkpoint -> 'channel_versions') v
   JOIN checkpoint_blobs b ON b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns
     AND b.channel = v.key AND b.version = v.value) AS blobs,
  (SELECT array_agg(ROW (w.task_id, w.channel, w.type, w.blob)
     ORDER BY w.task_path COLLATE "C", w.task_id COLLATE "C", w.idx)
   FROM checkpoint_writes w WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
     AND w.checkpoint_id = c.checkpoint_id) AS writes
FROM checkpoints c
"""


class PostgresSaver(BaseCheckpointSaver[str]):
    """A checkpointer on a pool of its role: no lock of its own, one statement per read and per write.

    With a fence it writes for one attempt of one run; without one it is for reading (role graph_read) and for upkeep.
    It is asynchronous only.
    """

    def __init__(
        self, database: Database, *, fence: Fence | None = None, serde: SerializerProtocol | None = None
    ) -> None:
        """Bind an open `database`; nothing is read or written yet."""
        super().__init__(serde=serde)
        self._database = database
        self._fence = fence
        self._guard: tuple[UUID | None, int | None, UUID | None] = (
            (fence.run_id, fence.attempt, fence.owner) if fence else (None, None, None)
        )
        self._prefix = _GUARDED if fence else _UNGUARDED
        self._durable: OrderedDict[str, None] = OrderedDict()
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    def get_next_version(self, current: str | int | float | None, channel: None) -> str:
        """Return the version after `current`, as the official saver makes it: ordered as text, and never met twice."""
        number = int(str(current).split(".", 1)[0]) if current is not None else 0
        return f"{number + 1:032}.{random.random():016}"

    GET_LATEST = _SELECT + "WHERE c.thread_id = $1 AND c.checkpoint_ns = $2 ORDER BY c.seq DESC LIMIT 1"
    GET_ONE = _SELECT + "WHERE c.thread_id = $1 AND c.checkpoint_ns = $2 AND c.checkpoint_id = $3"

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the latest by the database's order; None if missing."""
        thread_id, namespace = _place(config)
        if checkpoint_id := get_checkpoint_id(config):
            row = await self._database.fetchrow(self.GET_ONE, thread_id, namespace, checkpoint_id)
        else:
            row = await self._database.fetchrow(self.GET_LATEST, thread_id, namespace)
        if row is None:
            return None
        self._now_durable(row["checkpoint_id"])
        return saver_rows.tuple_of(row, self.serde)

    # $1 thread, $2 namespace, $3 checkpoint, $4 filter, $5 before (a checkpoint), $6 page end (a seq), $7 rows.
    LIST_THREAD = (
        _SELECT  # noqa: S608 - constants only
        + """
WHERE c.thread_id = $1 AND ($2::text IS NULL OR c.checkpoint_ns = $2) AND ($3::text IS NULL OR c.checkpoint_id = $3)
  AND c.metadata @> $4::jsonb AND ($6::bigint IS NULL OR c.seq < $6)
  AND ($5::text IS NULL OR c.seq < (SELECT max(b.seq) FROM checkpoints b WHERE b.thread_id = $1 AND b.checkpoint_id = $5
    AND ($2::text IS NULL OR b.checkpoint_ns = $2)))
ORDER BY c.seq DESC LIMIT $7"""
    )
    LIST_ALL = (
        _SELECT  # noqa: S608 - constants only
        + """
WHERE c.metadata @> $1::jsonb AND ($3::bigint IS NULL OR c.seq < $3)
  AND ($2::text IS NULL OR c.seq < (SELECT max(b.seq) FROM checkpoints b WHERE b.checkpoint_id = $2))
ORDER BY c.seq DESC LIMIT $4"""
    )

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first by the database's order; nothing comes before a missing one."""
        wanted = saver_rows.to_json(filter or {})
        before_id = get_checkpoint_id(before) if before else None
        last_seq: int | None = None
        left = limit
        while left is None or left > 0:
            page = LIST_PAGE if left is None else min(left, LIST_PAGE)
            if config is None:
                rows = await self._database.fetch(self.LIST_ALL, wanted, before_id, last_seq, page)
            else:
                place = config["configurable"]
                rows = await self._database.fetch(
                    self.LIST_THREAD,
                    str(place["thread_id"]),
                    place.get("checkpoint_ns"),
                    get_checkpoint_id(config),
                    wanted,
                    before_id,
                    last_seq,
                    page,
                )
            for row in rows:
                last_seq = row["seq"]
                yield saver_rows.tuple_of(row, self.serde)
            if len(rows) < page:
                return
            left = None if left is None else left - page

    PUT = """, blobs AS (
  INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
  SELECT $6, $7, u.channel, u.version, u.type, u.blob
  FROM guard, unnest($12::text[], $13::text[], $14::text[], $15::bytea[]) AS u (channel, version, type, blob)
  ON CONFLICT DO NOTHING
), point AS (
  INSERT INTO checkpoints
    (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata, run_id, attempt)
  SELECT $6, $7, $8, $9, $10::jsonb, $11::jsonb, $4::uuid, $5::integer FROM guard
  ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE
    SET checkpoint = excluded.checkpoint, metadata = excluded.metadata, run_id = excluded.run_id,
      attempt = excluded.attempt
)
SELECT count(*) FROM guard"""

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and its new channel values in one statement.

        Raises FenceLost, and writes nothing, if the run is not this attempt's any more.
        """
        thread_id, namespace = _place(config)
        full_metadata = get_serializable_checkpoint_metadata(config, metadata)
        run_id, attempt = saver_rows.run_id_of(full_metadata), None
        if self._fence:
            run_id, attempt = self._fence.run_id, self._fence.attempt
        try:
            await self._write(
                self.PUT,
                run_id,
                attempt,
                thread_id,
                namespace,
                checkpoint["id"],
                get_checkpoint_id(config),
                saver_rows.checkpoint_json(checkpoint),
                saver_rows.to_json(full_metadata),
                *saver_rows.blob_columns(checkpoint, new_versions, self.serde),
            )
        except Exception as error:
            for waiter in self._waiters.pop(checkpoint["id"], ()):
                if not waiter.done():
                    waiter.set_exception(error)
            raise
        self._now_durable(checkpoint["id"])
        return saver_rows.config_of(thread_id, namespace, checkpoint["id"])

    PUT_WRITES = """, stored AS (
  INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob)
  SELECT $4, $5, $6, $7, $8, u.idx, u.channel, u.type, u.blob
  FROM guard, unnest($9::integer[], $10::text[], $11::text[], $12::bytea[]) AS u (idx, channel, type, blob)
  ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) """
    KEEP_FIRST = """DO NOTHING
)
SELECT count(*) FROM guard"""
    # Errors, interrupts and resumes have an idx of their own and are replaced.
    KEEP_LAST = """DO UPDATE
    SET channel = excluded.channel, type = excluded.type, blob = excluded.blob, task_path = excluded.task_path
)
SELECT count(*) FROM guard"""

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote, in one statement; raises FenceLost as `aput` does."""
        if not writes:
            return
        thread_id, namespace = _place(config)
        by_index = {
            WRITES_IDX_MAP.get(channel, index): (channel, *self.serde.dumps_typed(value))
            for index, (channel, value) in enumerate(writes)
        }
        special = all(channel in WRITES_IDX_MAP for channel, _ in writes)
        await self._write(
            self.PUT_WRITES + (self.KEEP_LAST if special else self.KEEP_FIRST),
            thread_id,
            namespace,
            config["configurable"]["checkpoint_id"],
            task_id,
            task_path,
            list(by_index),
            *(list(column) for column in zip(*by_index.values(), strict=True)),
        )

    async def _write(self, statement: str, *args: Any) -> None:
        if not await self._database.fetchval(self._prefix + statement, *self._guard, *args):
            raise FenceLost(f"attempt {self._guard[1]} of run {self._guard[0]} may not write any more")

    async def durable(self, checkpoint_id: str, *, seconds: float = 10.0) -> None:
        """Return when this checkpoint is on disk, as far as this saver wrote or read it.

        Raises what its write raised, or TimeoutError after `seconds` (with durability `exit` it comes only at the end).
        """
        if checkpoint_id in self._durable:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(checkpoint_id, [])
        waiters.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiters.pop(checkpoint_id, None)

    def _now_durable(self, checkpoint_id: str) -> None:
        self._durable[checkpoint_id] = None
        if len(self._durable) > REMEMBERED_CHECKPOINTS:
            self._durable.popitem(last=False)
        for waiter in self._waiters.get(checkpoint_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread."""
        self._refuse_fenced()
        await saver_upkeep.delete_threads(self._database, [str(thread_id)])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete what these runs wrote, in every thread and namespace."""
        self._refuse_fenced()
        await saver_upkeep.delete_runs(self._database, [str(run_id) for run_id in run_ids])

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread's whole history, ancestors and writes included, to a thread that has none."""
        self._refuse_fenced()
        await saver_upkeep.copy_thread(self._database, str(source_thread_id), str(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the latest checkpoint of each namespace (`keep_latest`), or nothing (`delete`)."""
        self._refuse_fenced()
        threads = [str(thread_id) for thread_id in thread_ids]
        if strategy == "keep_latest":
            await saver_upkeep.keep_latest(self._database, threads)
        elif strategy == "delete":
            await saver_upkeep.delete_threads(self._database, threads)
        else:
            raise ValueError(f"prune strategy {strategy!r} is neither 'keep_latest' nor 'delete'")

    def _refuse_fenced(self) -> None:
        if self._fence:
            raise PermissionError("a run may add checkpoints; it may not delete or copy threads")

    def get_tuple(self, config: RunnableConfig) -> NoReturn:
        """Raise: asynchronous only."""
        _refuse_sync()

    def list(self, *args: Any, **kwargs: Any) -> Iterator[CheckpointTuple]:
        """Raise: asynchronous only."""
        _refuse_sync()

    def put(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: asynchronous only."""
        _refuse_sync()

    def put_writes(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: asynchronous only."""
        _refuse_sync()

    def delete_thread(self, thread_id: str) -> NoReturn:
        """Raise: asynchronous only."""
        _refuse_sync()


def _place(config: RunnableConfig) -> tuple[str, str]:
    place = config["configurable"]
    return str(place["thread_id"]), place.get("checkpoint_ns", "")


def _refuse_sync() -> NoReturn:
    raise NotImplementedError("PostgresSaver is asynchronous: call ainvoke, astream or aget_state on the graph")
