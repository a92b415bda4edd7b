"""Hints to executors over gRPC: runs are pending, a cancel was committed. Hints only make the durable path faster.

Invariant: at most one Wake is on its way to an executor, and one more is remembered: a burst of submissions costs as
many calls as executors can answer, not one call a submission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import grpc
import structlog
from headrace.executor.v1 import executor_service_pb2 as pb
from headrace.executor.v1 import executor_service_pb2_grpc as rpc
from headrace_kit.auth import call_metadata
from headrace_kit.grpc_client import open_channel
from pydantic import SecretStr

from run_worker.adapters.executors import ExecutorRow
from run_worker.adapters.owned import OwnedTasks

HINT_SECONDS: Final = 1.0
"""Deadline of a hint: the executor polls within about a second anyway."""

log = structlog.get_logger("run_worker.hints")


@dataclass(slots=True)
class _Peer:
    executor_id: UUID
    address: str
    channel: grpc.aio.Channel
    stub: rpc.ExecutorServiceAsyncStub
    free: int
    waking: bool = False
    again: bool = False
    unreachable: bool = field(default=False)


class ExecutorHints:
    """Knows the executors that can claim, and tells them what happened."""

    def __init__(self, *, token: SecretStr, tasks: OwnedTasks) -> None:
        self._token = token
        self._tasks = tasks
        self._peers: dict[UUID, _Peer] = {}

    def update(self, rows: Sequence[ExecutorRow]) -> None:
        """Take over the newest roster: executors that can claim, and their free slots by the database."""
        live = {row.executor_id: row for row in rows if row.can_claim}
        for executor_id in self._peers.keys() - live.keys():
            self._drop(executor_id)
        for executor_id, row in live.items():
            peer = self._peers.get(executor_id)
            if peer is not None and peer.address == row.address:
                peer.free = row.slots - row.held
                peer.unreachable = False
                continue
            if peer is not None:
                self._drop(executor_id)
            channel = open_channel(row.address)
            stub = rpc.ExecutorServiceStub(channel)
            self._peers[executor_id] = _Peer(executor_id, row.address, channel, stub, row.slots - row.held)

    def wake(self) -> None:
        """Tell the executor with most free slots that a run is pending."""
        reachable = [peer for peer in self._peers.values() if not peer.unreachable and peer.free > 0]
        peer = max(reachable, key=lambda peer: peer.free, default=None)
        if peer is None:
            # All full or none there: a freed slot claims by itself, and each executor polls.
            return
        # Our own count, until the answer or the roster knows better: the next wake goes to another one.
        peer.free -= 1
        if peer.waking:
            peer.again = True
            return
        peer.waking = self._tasks.start(self._wake(peer), name="wake", seconds=2 * HINT_SECONDS)

    def wake_after(self, seconds: float) -> None:
        """Wake an executor in `seconds`: a run's back-off will be over."""
        self._tasks.start(self._wake_later(seconds), name="wake-later", seconds=seconds + 1.0)

    def hint_cancel(self, executor_id: UUID, run_id: UUID) -> None:
        """Tell the owner of a run that its cancel is committed."""
        peer = self._peers.get(executor_id)
        if peer is not None:
            self._tasks.start(self._hint_cancel(peer, run_id), name="hint-cancel", seconds=2 * HINT_SECONDS)

    async def close(self) -> None:
        """Close the channels; call it when the tasks have been closed."""
        peers, self._peers = list(self._peers.values()), {}
        await asyncio.gather(*(peer.channel.close() for peer in peers))

    def _drop(self, executor_id: UUID) -> None:
        peer = self._peers.pop(executor_id)
        self._tasks.start(self._close(peer), name="close-channel", seconds=HINT_SECONDS)

    @staticmethod
    async def _close(peer: _Peer) -> None:
        await peer.channel.close()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return call_metadata(self._token.get_secret_value())

    async def _wake_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.wake()

    async def _wake(self, peer: _Peer) -> None:
        full = False
        try:
            answer = await peer.stub.Wake(pb.WakeRequest(), timeout=HINT_SECONDS, metadata=self._metadata())
            peer.free = answer.free_slots
            full = answer.free_slots <= 0
        except grpc.aio.AioRpcError as error:
            # Until the roster says that it lives, others are woken.
            peer.unreachable = full = True
            log.info("wake not delivered", executor_id=str(peer.executor_id), code=error.code().name)
        finally:
            peer.waking = False
        if peer.again or full:
            peer.again = False
            self.wake()

    async def _hint_cancel(self, peer: _Peer, run_id: UUID) -> None:
        request = pb.HintCancelRequest(run_id=str(run_id))
        try:
            await peer.stub.HintCancel(request, timeout=HINT_SECONDS, metadata=self._metadata())
        except grpc.aio.AioRpcError as error:
            log.info("cancel hint not delivered", run_id=str(run_id), code=error.code().name)
