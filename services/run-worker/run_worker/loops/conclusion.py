"""The ways out of an attempt: completed, interrupted, failed, cancelled, handed back, or silence.

Invariant: exactly one of them is taken; partial text of a run that was cut off enters transcript and checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from headrace_contract import telemetry
from headrace_contract.projection import EventName
from headrace_kit.errors import ServiceError
from opentelemetry import trace

from run_worker.adapters.claims import ClaimedRun
from run_worker.adapters.ends import Ended, Ending, EndRefused
from run_worker.adapters.failures import Failure, Verdict, judge
from run_worker.adapters.graph_run import Before, GraphRun, own_id
from run_worker.adapters.observer import RunObserver
from run_worker.adapters.saver import FenceLost
from run_worker.domain.encoding import json_bytes
from run_worker.domain.transcript import TranscriptMessage
from run_worker.loops.attempt import ExecutorParts, Owner, Signal, Stop
from run_worker.loops.ending import Closer
from run_worker.loops.observed_times import ObservedTimes
from run_worker.loops.run_buffer import RunBuffer

TIMES_SECONDS: Final = 0.2
"""How long an end waits for the observed times (spec 3)."""
STATE_SECONDS: Final = 5.0
"""Bound of reading or updating the checkpoint after a graph was stopped or failed."""

log = structlog.get_logger("headrace.conclusion")


@dataclass(slots=True)
class Progress:
    """How far the attempt came."""

    graph: GraphRun | None = None
    before: Before | None = None
    observer: RunObserver | None = None


class Conclusion:
    """Takes one attempt out."""

    def __init__(
        self,
        parts: ExecutorParts,
        row: ClaimedRun,
        buffer: RunBuffer,
        signal: Signal,
        times: ObservedTimes,
        progress: Progress,
        *,
        owner: Owner,
        slot_freed: Callable[[bool], None],
    ) -> None:
        self.closer = Closer(parts, owner, buffer)
        self._parts = parts
        self._row = row
        self._buffer = buffer
        self._signal = signal
        self._times = times
        self._progress = progress
        self._slot_freed = slot_freed

    async def conclude(self, error: BaseException | None) -> str:
        """Take the way out that the stop, or what the graph raised or left, asks for; return its name."""
        reason = self._signal.reason
        if reason is Stop.LOST:
            return self.silent()
        if reason is Stop.CANCEL:
            return await self._stopped(Ending("cancelled"))
        if reason is Stop.TIME_LIMIT:
            which = self._signal.which
            told = Failure(Verdict.FAIL, "timeout", f"the time limit {which} is used up", {"which": which})
            return await self._stopped(Ending("failed", error=told.as_json()))
        if reason is Stop.HAND_BACK:
            return await self.hand_back(Failure(Verdict.HAND_BACK))
        if isinstance(error, asyncio.CancelledError):
            return await self.retry(Failure(Verdict.RETRY, "graph_error", "the graph cancelled itself"))
        if error is not None:
            return await self._failed(error)
        return await self._completed()

    async def _completed(self) -> str:
        assert self._progress.graph is not None
        assert self._progress.before is not None
        after = await self._progress.graph.after(self._progress.before)
        if after.paused or after.interrupts:
            self._buffer.picture.interrupts = list(after.interrupts)
            self._buffer.emit(EventName.INTERRUPT, json_bytes({"questions": after.interrupts}))
            return await self.end(Ending("interrupted", interrupts=after.interrupts, messages=after.messages))
        if after.output_message_id is None and after.checkpoint_id is None:
            missing = Failure(Verdict.FAIL, "output_missing", "the graph left neither a message nor a checkpoint")
            return await self.end(Ending("failed", error=missing.as_json(), messages=after.messages))
        checkpoint = after.checkpoint_id if after.output_message_id is None else None
        return await self.end(
            Ending(
                "completed",
                output_message_id=after.output_message_id,
                output_checkpoint_id=checkpoint,
                messages=after.messages,
            )
        )

    async def _failed(self, error: BaseException) -> str:
        failure = judge(error)
        log.warning(
            "graph failed",
            verdict=failure.verdict.value,
            type=failure.type,
            exc_info=error if failure.type == "graph_error" else None,
        )
        if failure.verdict is Verdict.STOP:
            return self.silent()
        if failure.verdict is Verdict.HAND_BACK:
            return await self.hand_back(failure)
        if failure.verdict is Verdict.RETRY:
            return await self.retry(failure)
        return await self._stopped(Ending("failed", error=failure.as_json()))

    async def _stopped(self, ending: Ending) -> str:
        """End a run that was cut off: partial text enters the transcript and the checkpoint."""
        partials = [
            (self._own(message.partial()), message.node)
            for message in self._buffer.picture.open_messages()
            if message.top_level
        ]
        messages: list[TranscriptMessage] = []
        try:
            async with asyncio.timeout(STATE_SECONDS):
                messages += await self._keep(partials)
        except FenceLost:
            return self.silent()
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001  # the author's reducers and nodes: the run ends all the same
            log.warning("the checkpoint does not hold the cut-off messages", error=f"{type(error).__name__}: {error}")
        known = {message.message_id for message in messages}
        messages += [partial for partial, _ in partials if partial.message_id not in known]
        return await self.end(replace(ending, messages=messages))

    def _own(self, partial: TranscriptMessage) -> TranscriptMessage:
        before = self._progress.before
        if before is None:
            return partial
        return replace(partial, message_id=own_id(partial.message_id, before, self._row))

    async def _keep(self, partials: Sequence[tuple[TranscriptMessage, str]]) -> list[TranscriptMessage]:
        if self._progress.graph is None or self._progress.before is None:
            return []
        after = await self._progress.graph.after(self._progress.before)
        told = {message.message_id for message in after.messages}
        left = [(partial, node) for partial, node in partials if partial.message_id not in told]
        answers = await self._progress.graph.keep_partial(left, after)
        return [*after.messages, *(partial for partial, _ in left), *answers]

    async def end(self, ending: Ending) -> str:
        """Commit an ending and tell it."""
        await self._times.settle(TIMES_SECONDS)
        if self._progress.observer is not None:
            ending = replace(ending, usage=dict(self._progress.observer.usage))
        try:
            ended = await self.closer.end(ending, slot_freed=self._slot_freed)
        except EndRefused as error:
            log.error("PostgreSQL refused the end", exc_info=error)
            refused = Failure(Verdict.FAIL, "graph_error", f"the result could not be stored ({error})")
            ended = await self.closer.end(Ending("failed", error=refused.as_json()), slot_freed=self._slot_freed)
        return self._told(ended)

    def _told(self, ended: Ended | None) -> str:
        if ended is None:
            return self.silent()
        trace.get_current_span().set_attribute(telemetry.RUN_STATE, ended.state)
        log.info("run ended", state=ended.state)
        return ended.state

    async def retry(self, failure: Failure) -> str:
        """Count a fault: hand back with a back-off, or fail the run when faults are used up."""
        figures = self._parts.figures
        faults = self._row.faults + 1
        if faults >= figures.max_faults:
            return await self._stopped(Ending("failed", error=failure.as_json()))
        back_off = figures.fault_back_off_seconds[min(faults, len(figures.fault_back_off_seconds)) - 1]
        return await self.hand_back(failure, fault=True, back_off_seconds=back_off)

    async def hand_back(self, failure: Failure, *, fault: bool = False, back_off_seconds: float = 0.0) -> str:
        """Give the lease up; if a cancel waits for its end, end the run as cancelled instead."""
        error: dict[str, object] | None = dict(failure.as_json()) if failure.message else None
        if await self.closer.hand_back(fault=fault, back_off_seconds=back_off_seconds, error=error):
            log.info("handed back", fault=fault)
            self._buffer.close()
            return "handed_back"
        if await self._cancel_waits():
            return await self._stopped(Ending("cancelled"))
        return self.silent()

    async def _cancel_waits(self) -> bool:
        try:
            return await self.closer.cancel_waits()
        except ServiceError:
            return False

    def silent(self) -> str:
        """Write nothing and tell nothing: the run is another attempt's."""
        log.warning("the run is not this attempt's any more; nothing written, nothing told")
        self._buffer.close()
        return "lost"
