"""A relay with real stores around it: rows and stream entries as run-worker writes them, and viewers that collect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import grpc
from event_relay import server
from event_relay.domain.tail import Tail
from event_relay.settings import RelaySettings
from headrace.relay.v1 import relay_service_pb2 as pb
from headrace.relay.v1 import relay_service_pb2_grpc as pb_grpc
from headrace_contract.projection import FIELD_DATA, FIELD_EVENT, EventId, events_key
from headrace_kit.auth import call_metadata, sha256_hex
from headrace_kit.errors import ServiceError, from_rpc_error
from headrace_kit.grpc_client import open_channel
from headrace_kit.redis import open_redis
from redis.asyncio import Redis

TOKEN = "token-of-the-gateway"
DEADLINE_SECONDS = 30.0
"""Bound of every wait in these tests; what is waited for comes in well under a few seconds."""

ADD_EXECUTOR = """
INSERT INTO executors (executor_id, control_id, host, pid, address, version, slots, lease_expires_at)
VALUES ($1, $1, 'here', 1, '127.0.0.1:1', 'test', 1, now() + interval '1 hour')"""
ADD_THREAD = "INSERT INTO threads (thread_id, uid, agent) VALUES ($1, $2, 'echo')"
ADD_REQUEST = """
INSERT INTO requests (request_id, thread_id, uid, agent, run_id, state, body_sha256, dispatched_at)
VALUES ($1, $2, $3, 'echo', $4, $5, '\\x00', CASE WHEN $5 = 'dispatched' THEN now() END)"""
ADD_RUN = """
INSERT INTO runs (run_id, request_id, thread_id, uid, agent, ordinal, root_run_id, state)
VALUES ($1, $2, $3, $4, 'echo', (SELECT count(*) + 1 FROM runs WHERE thread_id = $3), $1, 'pending')"""
DISPATCH = "UPDATE requests SET state = 'dispatched', dispatched_at = now() WHERE request_id = $1"
BUSY = "UPDATE threads SET state = 'busy', active_run_id = $2 WHERE thread_id = $1"
CLAIM = """
UPDATE runs SET state = 'running', attempt = $2, lease_owner = $3, started_at = coalesce(started_at, now())
WHERE run_id = $1"""
ADD_MESSAGE = """
INSERT INTO messages (thread_id, message_id, run_id, request_id, role, content)
VALUES ($1, $2, $3, $4, 'assistant', to_jsonb($5::text))"""
END = """
UPDATE runs SET state = 'completed', lease_owner = NULL, finished_at = now() - make_interval(secs => $2),
  output_message_id = $3, result_event_id = $4, end_event_id = $5, runtime_cleanup_pending = $6 WHERE run_id = $1"""
CLEAR_FENCE = """
UPDATE runs SET runtime_cleanup_pending = false, runtime_cleanup_cleared_at = now() - make_interval(secs => $2)
WHERE run_id = $1"""
CANCEL_REQUEST = (
    "UPDATE requests SET state = 'cancelled', finished_at = now() - make_interval(secs => $2) WHERE request_id = $1"
)
DELETE_THREAD = "UPDATE threads SET deleted_at = now() WHERE thread_id = $1"
CUT_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1"


@dataclass(frozen=True, slots=True)
class Ids:
    run_id: UUID
    request_id: UUID
    thread_id: UUID


class Rows:
    """Writes what run-worker would, past its checks."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._executor = uuid4()

    async def prepare(self) -> None:
        await self._connection.execute(ADD_EXECUTOR, self._executor)

    async def thread(self, uid: str = "ada") -> UUID:
        thread_id = uuid4()
        await self._connection.execute(ADD_THREAD, thread_id, uid)
        return thread_id

    async def queued(self, *, uid: str = "ada", thread_id: UUID | None = None) -> Ids:
        ids = Ids(uuid4(), uuid4(), thread_id or await self.thread(uid))
        await self._connection.execute(ADD_REQUEST, ids.request_id, ids.thread_id, uid, ids.run_id, "queued")
        return ids

    async def dispatch(self, ids: Ids, *, uid: str = "ada") -> None:
        async with self._connection.transaction():
            await self._connection.execute(DISPATCH, ids.request_id)
            await self._connection.execute(ADD_RUN, ids.run_id, ids.request_id, ids.thread_id, uid)
            await self._connection.execute(BUSY, ids.thread_id, ids.run_id)

    async def claim(self, ids: Ids, *, attempt: int = 1) -> None:
        await self._connection.execute(CLAIM, ids.run_id, attempt, self._executor)

    async def running(self, *, uid: str = "ada") -> Ids:
        ids = await self.queued(uid=uid)
        await self.dispatch(ids, uid=uid)
        await self.claim(ids)
        return ids

    async def end(
        self, ids: Ids, *, result: str, seconds_ago: float = 60.0, text: str = "done", fenced: bool = False
    ) -> None:
        """End a run as completed with one message; `end` is the id after `result`."""
        at = EventId.parse(result)
        message_id = f"m-{ids.run_id}"
        async with self._connection.transaction():
            await self._connection.execute(ADD_MESSAGE, ids.thread_id, message_id, ids.run_id, ids.request_id, text)
            await self._connection.execute(
                END, ids.run_id, seconds_ago, message_id, result, str(EventId(at.attempt, at.n + 1)), fenced
            )

    async def clear_fence(self, ids: Ids, *, seconds_ago: float = 60.0) -> None:
        await self._connection.execute(CLEAR_FENCE, ids.run_id, seconds_ago)

    async def cancel_request(self, ids: Ids) -> None:
        await self._connection.execute(CANCEL_REQUEST, ids.request_id, 60.0)

    async def delete_thread(self, thread_id: UUID) -> None:
        await self._connection.execute(DELETE_THREAD, thread_id)

    @asynccontextmanager
    async def shut_out(self, role: str, *, server_dsn: str) -> AsyncIterator[None]:
        """Refuse a role's logins and cut its sessions until the end of the block."""
        admin = await asyncpg.connect(server_dsn)
        try:
            await admin.execute(f'ALTER ROLE "{role}" NOLOGIN')
            await admin.execute(CUT_SESSIONS, role)
            yield
            await admin.execute(f'ALTER ROLE "{role}" LOGIN')
        finally:
            await admin.close()


class Writer:
    """Appends to one run's stream as its owner would: explicit ids, n without holes."""

    def __init__(self, redis: Redis, run_id: UUID, *, shards: int = 1) -> None:
        self.key = events_key(str(run_id), shards)
        self.at = EventId(1, 0)
        self.redis = redis

    async def add(self, event: str = "custom", data: Any = None, *, at: EventId | None = None) -> str:
        self.at = at or EventId(self.at.attempt, self.at.n + 1)
        body = json.dumps({"n": self.at.n} if data is None else data)
        await self.redis.xadd(self.key, {FIELD_EVENT: event, FIELD_DATA: body}, id=str(self.at))
        return str(self.at)

    async def add_many(self, count: int, *, data: bytes = b"{}") -> list[str]:
        """Append `count` customs in one round trip."""
        pipeline = self.redis.pipeline(transaction=False)
        ids = []
        for _ in range(count):
            self.at = EventId(self.at.attempt, self.at.n + 1)
            ids.append(str(self.at))
            pipeline.xadd(self.key, {FIELD_EVENT: "custom", FIELD_DATA: data}, id=ids[-1])
        await pipeline.execute()
        return ids

    def skip(self, count: int) -> None:
        """Make a hole."""
        self.at = EventId(self.at.attempt, self.at.n + count)


@dataclass
class Viewing:
    """One open FollowRun: what came so far, and how it ended."""

    call: Any
    events: list[pb.Event] = field(default_factory=list)
    beats: int = 0
    sizes: list[int] = field(default_factory=list)
    error: ServiceError | None = None
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: asyncio.Task[None] | None = None

    async def _collect(self) -> None:
        try:
            async for response in self.call:
                async with self.grown:
                    if response.HasField("heartbeat"):
                        self.beats += 1
                    else:
                        self.events += response.batch.events
                        self.sizes.append(sum(len(event.data) for event in response.batch.events))
                    self.grown.notify_all()
        except grpc.aio.AioRpcError as error:
            self.error = from_rpc_error(error)

    def start(self) -> asyncio.Task[None]:
        """Collect until the stream ends."""
        self.task = asyncio.create_task(self._collect())
        return self.task

    async def until(self, ready: Callable[[Viewing], bool]) -> Viewing:
        """Wait until what came satisfies `ready`."""
        async with asyncio.timeout(DEADLINE_SECONDS), self.grown:
            await self.grown.wait_for(lambda: ready(self))
        return self

    async def count(self, events: int) -> Viewing:
        return await self.until(lambda viewing: len(viewing.events) >= events)

    async def ended(self) -> ServiceError | None:
        """Wait for the stream's end; return its error."""
        assert self.task is not None
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self.task
        return self.error

    async def beat(self, times: int) -> Viewing:
        """Wait for that many further heartbeats."""
        goal = self.beats + times
        return await self.until(lambda viewing: viewing.beats >= goal)

    async def rest(self) -> Viewing:
        """Wait for the clean end."""
        assert await self.ended() is None
        return self

    @property
    def told(self) -> list[str]:
        """`id event` of each event; events without a place have only their name."""
        return [f"{event.id} {event.event}".strip() for event in self.events]

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.events]

    def data(self, name: str) -> list[Any]:
        return [json.loads(event.data) for event in self.events if event.event == name]


@dataclass
class World:
    """What a test needs."""

    relay: server.Relay
    rows: Rows
    redis: Redis
    stub: pb_grpc.RelayServiceStub
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def writer(self, ids: Ids, *, shards: int = 1) -> Writer:
        return Writer(self.redis, ids.run_id, shards=shards)

    def open(self, run_id: UUID | str, *, after: str = "", modes: Iterable[str] = (), uid: str = "ada") -> Any:
        """Open a stream that nobody reads yet."""
        request = pb.FollowRunRequest(run_id=str(run_id), after=after, modes=list(modes))
        return self.stub.FollowRun(request, metadata=call_metadata(TOKEN, uid=uid), timeout=120)

    def follow(self, run_id: UUID | str, *, after: str = "", modes: Iterable[str] = (), uid: str = "ada") -> Viewing:
        """Open a stream and collect it."""
        viewing = Viewing(self.open(run_id, after=after, modes=modes, uid=uid))
        self.tasks.append(viewing.start())
        return viewing

    async def refused(self, run_id: UUID | str, **how: Any) -> ServiceError:
        error = await self.follow(run_id, **how).ended()
        assert error is not None
        return error

    async def nobody_follows(self) -> None:
        """Wait until the relay holds no stream and no tail."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while self.relay.book.tails:  # noqa: ASYNC110  # a dict of the relay's; it has no event for tests
                await asyncio.sleep(0.01)

    async def stays_open(self, viewing: Viewing) -> bool:
        """Wait until a stream shows a sign of life; False when it ends instead."""
        assert viewing.task is not None
        alive = asyncio.create_task(viewing.until(lambda v: v.beats > 0 or bool(v.events)))
        await asyncio.wait({viewing.task, alive}, return_when=asyncio.FIRST_COMPLETED)
        ended = viewing.task.done()
        alive.cancel()
        await asyncio.gather(alive, return_exceptions=True)
        return not ended

    async def tail(self, run_id: str) -> Tail:
        """Wait until a run's tail is live."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                tail = self.relay.book.tails.get(UUID(run_id))
                if tail is not None and tail.live:
                    return tail
                await asyncio.sleep(0.01)

    async def stop_following(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        await self.nobody_follows()


def settings(folder: Path, *, budget_file: Path, relay_dsn: str, redis_url: str) -> RelaySettings:
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({"api-gateway": sha256_hex(TOKEN)}))
    return RelaySettings.model_validate(
        {
            "budget_file": budget_file,
            "tokens_file": tokens,
            "data_dir": folder,
            "relay_dsn": relay_dsn,
            "redis_url": redis_url,
        }
    )


def changed_budget(source: Path, target: Path, figures: dict[str, float]) -> Path:
    """Write the budget with other figures, so that a test need not last as long as production is patient."""
    lines = source.read_text().splitlines()
    for name, value in figures.items():
        lines = [f"{name} = {value}" if line.startswith(f"{name} =") else line for line in lines]
    target.write_text("\n".join(lines) + "\n")
    return target


@asynccontextmanager
async def world(settings: RelaySettings, *, admin_dsn: str) -> AsyncIterator[World]:
    """Run a relay in this process until the end of the block; it must leave nothing behind."""
    connection = await asyncpg.connect(admin_dsn)
    rows = Rows(connection)
    await rows.prepare()
    redis = open_redis(settings.redis_url.get_secret_value(), max_connections=8, client_name="test")
    relay = await server.startup(settings)
    stop = asyncio.Event()
    running = asyncio.create_task(server.run(relay, stop))
    channel = open_channel(relay.server.address)
    made = World(relay, rows, redis, pb_grpc.RelayServiceStub(channel))
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not relay.book.ready:  # noqa: ASYNC110  # a flag of the relay's; it has no event for tests
                await asyncio.sleep(0.01)
        yield made
        await made.stop_following()
    finally:
        stop.set()
        await running
        await server.close(relay)
        await channel.close()
        await redis.aclose()
        await connection.close()
