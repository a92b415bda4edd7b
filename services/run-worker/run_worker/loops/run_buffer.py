"""One run's events between the graph and the flusher: deltas merge here, numbers are given here, losses heal here.

Invariant: n is given only when a batch is sealed for sending or the end is near, so an event that had to be dropped
never had a number; what has a number is kept until Redis has it, or a snapshot takes its place.

    CLEAN ──away──▶ DOUBT ──last id read──▶ CLEAN          (re-sent from the ring, or a snapshot)
    CLEAN ──lost──▶ LOST ──lease checked──▶ CLEAN          (a snapshot begins the stream again)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from headrace_agent.sink import MessageSink
from headrace_contract.projection import EventId, EventName

from run_worker.adapters.stream import Appended, Batch
from run_worker.domain.encoding import json_bytes
from run_worker.domain.limits import LeaseOver
from run_worker.domain.picture import Picture, PictureMessage, cut_event
from run_worker.domain.transcript import TranscriptMessage
from run_worker.loops.run_sink import OpenSink, UnheardSink
from run_worker.loops.sent_log import ENTRY_OVERHEAD_BYTES, SentLog

BUFFER_MAX_BYTES: Final = 4 * 1024 * 1024
"""Unsent events of one run: a few of the largest. Over it deltas are dropped and a snapshot follows; then all, with a
number left out in front of the snapshot."""
PRESSURE_BYTES: Final = 1024 * 1024
"""Unsent events of one run over which its graph's stream waits for Redis: a quarter of what drops some."""
TTL_RENEW_SECONDS: Final = 60.0
"""How often the stream's TTL (2 h) is renewed while the run writes."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Figures of `[stream]` in budget.toml."""

    merge_bytes: int
    event_max_bytes: int
    stream_max_bytes: int
    snapshot_every_bytes: int
    snapshot_every_events: int
    ring_seconds: float


class Health(Enum):
    """What is known about the run's stream."""

    CLEAN = "clean"
    DOUBT = "doubt"
    LOST = "lost"


class RunBuffer:
    """Implements headrace_agent.sink.RunSink for one attempt, and holds what it has not told yet."""

    def __init__(
        self,
        *,
        run_id: str,
        attempt: int,
        limits: StreamLimits,
        wake: Callable[[RunBuffer, bool], None],
        may_call: Callable[[], bool] = lambda: True,
        subgraphs: bool = False,
    ) -> None:
        """`wake(buffer, urgent)` tells the flusher; `may_call` says whether the lease is alive."""
        self.run_id = run_id
        self.attempt = attempt
        self.picture = Picture()
        self.activity = 0
        """Pieces received so far; whoever watches for silence compares it."""
        self.first_output_at: float | None = None
        """Monotonic time of the first text, reasoning or tool-call data."""
        self.on_first_output: Callable[[], None] | None = None
        self.health = Health.CLEAN
        self.closed = False
        """True: nothing is taken or told any more."""
        self.due_at = 0.0
        """When the flusher wants it next, in its own clock."""
        self._limits = limits
        self._wake = wake
        self._may_call = may_call
        self._subgraphs = subgraphs
        self._touched: dict[str, PictureMessage] = {}
        self._announced: dict[str, TranscriptMessage] = {}
        self._merged = 0
        self._pending: list[tuple[str, bytes, bool]] = []
        self._pending_bytes = 0
        self._log = SentLog(limits.ring_seconds)
        self._frozen = False
        self._snapshot_due = False
        self._gap_due = False
        self._recreate = False
        self._since_snapshot = [0, 0]
        self._stream_bytes = 0
        self._ttl_at = float("-inf")
        self._trim_below: int | None = None

    # --- what the graph tells -------------------------------------------------------------------------------------

    def open_message(self, message_id: str, metadata: Mapping[str, Any]) -> MessageSink:
        """Open a model's message (headrace_agent.sink)."""
        namespace = str(metadata.get("langgraph_checkpoint_ns", ""))
        if "|" in namespace and not self._subgraphs:
            return UnheardSink(self)
        kept = {k: metadata[k] for k in ("langgraph_node", "langgraph_checkpoint_ns") if k in metadata}
        message = self.picture.open(message_id, kept, top_level="|" not in namespace)
        if self._announced:
            message.announced = self._announced.pop(message_id, message.announced)
        return OpenSink(self, message)

    def may_call_model(self) -> None:
        """Raise LeaseOver when no call may be made any more (headrace_agent.sink)."""
        if self.closed or self._frozen or not self._may_call():
            raise LeaseOver("the run's lease is over")

    def touched(self, message: PictureMessage, size: int) -> None:
        """Note a new piece of an open message; called once per token."""
        self.activity += 1
        self._merged += size
        if message.message_id not in self._touched:
            self._touched[message.message_id] = message
            self._tell(urgent=self.first_output_at is None)
        elif self._merged >= self._limits.merge_bytes:
            self._merged = 0
            self._tell(urgent=True)

    def known(self, message_id: str) -> bool:
        """Say whether the message was told already, whole or in pieces."""
        return message_id in self.picture.messages

    def streamed(self, text: str, *, calls: bool, but: AbstractSet[str]) -> str | None:
        """Return the id of a message that was told in pieces and has this text, and whose id is none of `but`."""
        for message_id, message in self.picture.messages.items():
            streamed = message.text.parts and bool(message.calls) == calls and message_id not in but
            if streamed and str(message.text) == text:
                return message_id
        return None

    def announce(self, message: TranscriptMessage) -> None:
        """Take a foreign model's complete message, whose last pieces may still be on their way."""
        found = self.picture.messages.get(message.message_id)
        if found is None:
            self._announced[message.message_id] = message
        else:
            found.announced = message

    def close_message(self, message: TranscriptMessage) -> None:
        """Complete an open message; its last pieces are told at once."""
        if self.picture.put(message):
            self._tell(urgent=True)

    def complete(self, message: TranscriptMessage, wire: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Tell a message that was not streamed, once."""
        if self.known(message.message_id):
            return
        self.picture.put(message, metadata)
        data = json_bytes([wire, metadata])
        if message.role == "assistant" and (message.content or message.tool_calls or message.reasoning):
            self._first_output()
        self.emit(EventName.MESSAGES, data, head={k: wire[k] for k in ("type", "id") if k in wire})

    def emit(self, event: str, data: bytes, *, head: Mapping[str, Any] | None = None) -> None:
        """Queue an event behind everything told before it; over 1 MiB a typed marker takes its place."""
        if self.closed or self._frozen:
            return
        if len(data) > self._limits.event_max_bytes:
            data = cut_event(event, data, head)
        self._seal_deltas()
        self._queue(event, data, delta=False)
        self._tell(urgent=True)

    def snapshot(self) -> None:
        """Queue a snapshot of the picture as it is when the batch is sealed."""
        self._snapshot_due = True
        self._tell(urgent=True)

    def _first_output(self) -> None:
        if self.first_output_at is None:
            self.first_output_at = time.monotonic()
            if self.on_first_output is not None:
                self.on_first_output()

    def _tell(self, *, urgent: bool) -> None:
        if self.closed or self._frozen:
            return
        if self._touched:
            self._first_output()
        self._wake(self, urgent)

    # --- what the flusher takes -----------------------------------------------------------------------------------

    def _seal_deltas(self) -> None:
        if not self._touched:
            return
        touched, self._touched, self._merged = self._touched, {}, 0
        for message in touched.values():
            data = message.untold()
            if data is not None:
                if len(data) > self._limits.event_max_bytes:
                    data = cut_event(EventName.MESSAGES, data, {"type": "AIMessageChunk", "id": message.message_id})
                self._queue(EventName.MESSAGES, data, delta=True)

    def _queue(self, event: str, data: bytes, *, delta: bool) -> None:
        self._pending.append((event, data, delta))
        self._pending_bytes += len(data) + ENTRY_OVERHEAD_BYTES
        if self._pending_bytes > BUFFER_MAX_BYTES:
            kept = [item for item in self._pending if not item[2]]
            size = sum(len(item[1]) + ENTRY_OVERHEAD_BYTES for item in kept)
            if size > BUFFER_MAX_BYTES:
                # A snapshot stands for text only; that other events are missing has to show.
                kept, size, self._gap_due = [], 0, True
            self._pending, self._pending_bytes = kept, size
            self._snapshot_due = True

    def pressed(self) -> bool:
        """Say whether so much waits that whoever tells should wait for Redis first."""
        return self._pending_bytes > PRESSURE_BYTES

    def waiting(self) -> bool:
        """Say whether something is not in Redis yet."""
        due = self._snapshot_due and not self._frozen
        return not self.closed and bool(self._pending or self._touched or due or self._log.underway)

    def take(self, now: float) -> Batch | None:
        """Seal what waits into a numbered batch; what was numbered and not acknowledged comes first, unchanged."""
        if self.closed or self.health is not Health.CLEAN:
            return None
        if not self._log.underway:
            if not self._frozen:
                self._seal_deltas()
            self._number()
        if not self._log.underway:
            return None
        entries = tuple(self._log.underway)
        renew = self._recreate or now - self._ttl_at >= TTL_RENEW_SECONDS or entries[-1].event == EventName.END
        return Batch(
            run_id=self.run_id,
            attempt=self.attempt,
            entries=entries,
            may_create=self._recreate or entries[0].n == 1,
            renew_ttl=renew,
            trim_below=self._trim_below,
        )

    def _number(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if self._gap_due:
            self._gap_due = False
            self._log.skip()
        if self._snapshot_due:
            pending = [item for item in pending if not item[2]]
        for event, data, _ in pending:
            self._append(event, data)
        full = (
            self._since_snapshot[0] >= self._limits.snapshot_every_bytes
            or self._since_snapshot[1] >= self._limits.snapshot_every_events
        )
        if not self._frozen and (self._snapshot_due or full):
            self._snapshot_due = False
            self._append(EventName.SNAPSHOT, self.picture.snapshot(self._limits.event_max_bytes))
            self._since_snapshot = [0, 0]
            if self._stream_bytes > self._limits.stream_max_bytes:
                self._trim_below = self._log.n
                self._stream_bytes = 0

    def _append(self, event: str, data: bytes) -> None:
        size = self._log.append(event, data)
        self._stream_bytes += size
        self._since_snapshot[0] += size
        self._since_snapshot[1] += 1

    def settle(self, batch: Batch, outcome: Appended, now: float) -> None:
        """Learn what became of the batch that `take` made."""
        if outcome is Appended.OK:
            self._log.arrived(batch.entries[-1].n, now)
            self._recreate = False
            if batch.renew_ttl:
                self._ttl_at = now
            if batch.trim_below is not None:
                self._trim_below = None
        elif outcome is Appended.LOST:
            self.health = Health.LOST
        else:
            self.health = Health.DOUBT

    def resync(self, last: EventId | None, now: float) -> bool:
        """Go on from the stream's last id; False when a newer attempt writes there: stop the run."""
        if last is None:
            # Nothing of ours ever arrived: the first entry may create; otherwise the stream was lost.
            never = self._log.acked == 0 and bool(self._log.underway) and self._log.underway[0].n == 1
            self.health = Health.CLEAN if never else Health.LOST
            return True
        if (last.attempt, last.n) > (self.attempt, self._log.n):
            return False
        if not self._log.rewind(last.n if last.attempt == self.attempt else 0, now):
            if self._frozen:
                # No snapshot has a number any more: the relay tells the end.
                self.health = Health.LOST
                return True
            # The ring does not reach back: viewers get a hole, then the snapshot that heals it.
            self._log.give_up()
            self._snapshot_due = True
        self.health = Health.CLEAN
        return True

    def recreate(self) -> None:
        """Begin a lost stream again with a snapshot; only after a lease check."""
        self._log.give_up()
        self._snapshot_due = True
        self._recreate = True
        self._stream_bytes = 0
        self._ttl_at = float("-inf")
        self.health = Health.CLEAN

    # --- the end --------------------------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        """True once the ids of `result` and `end` are reserved."""
        return self._frozen

    def freeze(self) -> int:
        """Take no more events, number what waits, and return the last n: `result` and `end` follow it.

        What Redis does not have yet has a number below theirs, whole or as a snapshot: it is offered along with them,
        and should Redis stay away, a viewer's last event is not the one right before `result`.
        """
        if not self._frozen:
            self._seal_deltas()
            self._number()
            self._frozen = True
        return self._log.n

    def finish(self, result: bytes, end: bytes | None) -> None:
        """Queue `result` and, without a fence, `end`, under the reserved ids."""
        self._append(EventName.RESULT, result)
        if end is not None:
            self._append(EventName.END, end)
        self._wake(self, True)

    def close(self) -> None:
        """Forget everything: nothing more is told by this attempt."""
        self.closed = True
        self._pending, self._touched = [], {}
        self._log.give_up()
