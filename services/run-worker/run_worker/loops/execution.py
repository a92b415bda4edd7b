"""One attempt of a run, from its claim to its end: prepare, execute the graph, and end or hand back.

Invariants: the input is applied once over all attempts; nothing is written or told after the fence is lost; every way
out of here is an end, a hand-back, or silence because another attempt owns the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

import structlog
from headrace_agent.sink import current_sink
from headrace_contract import telemetry
from headrace_contract.projection import EventName
from headrace_kit.errors import ServiceError
from opentelemetry import propagate, trace
from opentelemetry.trace import Status, StatusCode

from run_worker.adapters import claims
from run_worker.adapters.ends import Ended, Ending
from run_worker.adapters.failures import Failure, Verdict, judge
from run_worker.adapters.graph_run import (
    After,
    Before,
    GraphRun,
    MessagePiece,
    complete_message,
    delta_of,
    message_id,
    read_before,
    run_config,
)
from run_worker.adapters.graphs import Agent
from run_worker.adapters.leases import watch
from run_worker.adapters.observer import RunObserver
from run_worker.adapters.patient_saver import PatientSaver
from run_worker.adapters.saver import Fence, FenceLost
from run_worker.adapters.stream import metadata_event
from run_worker.domain import manifest as manifests
from run_worker.domain.encoding import json_bytes, json_text
from run_worker.domain.limits import Activity, TimeLimits, broken_limit
from run_worker.domain.transcript import TranscriptMessage
from run_worker.loops.attempt import ExecutorParts, Owner, Signal, Stop, limits_of
from run_worker.loops.ending import FLUSH_SECONDS, Closer, EndingFailed
from run_worker.loops.observed_times import ObservedTimes
from run_worker.loops.run_buffer import RunBuffer

TIMES_SECONDS: Final = 0.2
"""How long an end waits for the observed times (spec 3)."""
STOP_SECONDS: Final = 5.0
"""How long a stopped graph may take to come to rest; one that does not is left behind, fenced off."""
STATE_SECONDS: Final = 5.0
"""Bound of reading or updating the checkpoint after a graph was stopped or failed."""

log = structlog.get_logger("headrace.execution")


class Attempt:
    """One attempt; `signal` stops it. What `run` raises left the run owned: the orphan sweep hands it back."""

    def __init__(self, parts: ExecutorParts, run: claims.ClaimedRun) -> None:
        self.run_row = run
        self.signal = Signal()
        self.holds_slot = True
        self._parts = parts
        self._owner = Owner.of(run, parts.executor_id)
        self._id = str(run.run_id)
        self.buffer = RunBuffer(
            run_id=self._id,
            attempt=run.attempt,
            limits=parts.stream_limits,
            wake=parts.flusher.wake,
            may_call=parts.lease.alive,
            subgraphs=run.stream_subgraphs,
        )
        self._closer = Closer(parts, self._owner, self.buffer)
        self._times = ObservedTimes(
            parts.database, self._owner, flushed=lambda: parts.flusher.flushed(self.buffer, seconds=FLUSH_SECONDS)
        )
        self._observer: RunObserver | None = None
        self._limits: TimeLimits = parts.figures.limits
        self._activity = Activity(started_at=time.monotonic())
        self._graph: GraphRun | None = None
        self._before: Before | None = None
        self._span: trace.Span = trace.INVALID_SPAN

    # --- from outside ---------------------------------------------------------------------------------------------

    def check_limits(self, now: float) -> None:
        """Stop the attempt if one of its time limits is broken."""
        observer = self._observer
        if observer is None:
            return
        which = broken_limit(
            now,
            self._limits,
            self._activity,
            pieces=self.buffer.activity,
            models=list(observer.models.values()),
            tools=list(observer.tools.values()),
        )
        if which is not None:
            self.signal.set(Stop.TIME_LIMIT, which)

    async def lease_alive(self) -> bool | None:
        """Ask PostgreSQL whether the run is still this attempt's; None while it is away."""
        try:
            seen = await watch(self._parts.database, run_ids=[self.run_row.run_id])
        except ServiceError:
            return None
        return any(s.running and (s.attempt, s.owner) == (self._owner.attempt, self._owner.owner) for s in seen)

    # --- the attempt ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Execute the attempt to one of its ends."""
        structlog.contextvars.bind_contextvars(run_id=self._id, attempt=self.run_row.attempt)
        carrier = {"traceparent": self.run_row.traceparent} if self.run_row.traceparent else {}
        parent = propagate.extract(carrier)
        attributes: dict[str, str | int] = {
            telemetry.RUN_ID: self._id,
            telemetry.THREAD_ID: str(self.run_row.thread_id),
            telemetry.REQUEST_ID: str(self.run_row.request_id),
            telemetry.ATTEMPT: self.run_row.attempt,
            telemetry.EXECUTOR_ID: str(self._parts.executor_id),
        }
        waited = self._parts.tracer.start_span(
            telemetry.SPAN_QUEUE_WAIT, context=parent, attributes=attributes, start_time=_ns(self.run_row.created_at)
        )
        waited.end(_ns(self.run_row.started_at))
        with self._parts.tracer.start_as_current_span(
            telemetry.SPAN_ATTEMPT, context=parent, attributes=attributes
        ) as self._span:
            self._parts.flusher.join(
                self.buffer, lease_alive=self.lease_alive, superseded=lambda: self.signal.set(Stop.LOST)
            )
            try:
                outcome = await self._guarded()
                self._span.set_attribute(telemetry.OUTCOME, outcome)
            finally:
                await self._times.settle(0)
                if self._observer is not None:
                    self._observer.close()
                self._give_slot_back(False)
                self._parts.flusher.leave(self.buffer)

    async def _guarded(self) -> str:
        try:
            return await self._execute()
        except asyncio.CancelledError:
            # Not a user's cancel: infrastructure. Another attempt goes on.
            await self._closer.hand_back()
            raise
        except FenceLost:
            return self._silent()
        except Exception as error:
            # The run's edge: whatever it is, the run must not stay owned.
            self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            failure = judge(error)
            if failure.verdict is Verdict.STOP:
                return self._silent()
            log.error("attempt failed outside its graph", exc_info=error)
            if failure.verdict is Verdict.HAND_BACK:
                return await self._hand_back(Failure(Verdict.HAND_BACK, message=failure.message))
            return await self._retry(Failure(Verdict.RETRY, "faults_exhausted", failure.message, failure.details))

    async def _execute(self) -> str:
        row = self.run_row
        self.buffer.emit(
            EventName.METADATA,
            metadata_event(
                run_id=self._id,
                thread_id=str(row.thread_id),
                request_id=str(row.request_id),
                attempt=row.attempt,
                agent=row.agent,
            ),
        )
        agent = self._parts.agents.get(row.agent)
        if agent is None:
            if row.attempt > 1:
                self.buffer.snapshot()
            message = f"no agent {row.agent!r} is loaded"
            return await self._end(Ending("failed", error=Failure(Verdict.FAIL, "agent_missing", message).as_json()))
        saver = PatientSaver(
            self._parts.graph_database,
            fence=Fence(run_id=row.run_id, attempt=row.attempt, owner=self._owner.owner),
            patience=self._parts.lease.may_stream,
        )
        self._before = before = await self._read_before(saver)
        if row.attempt > 1:
            for own in before.own:
                self.buffer.picture.put(own)
            self.buffer.snapshot()
        self._limits = limits_of(agent, self._parts.figures)
        durability = row.durability or agent.settings.durability
        if not await self._record(agent, durability):
            return self._silent()
        graph = await agent.for_run(run_config(row), saver)
        self._graph = GraphRun(row, graph, saver, recursion_limit=agent.settings.recursion_limit)
        error = await self._invoke(agent, before, durability)
        return await self._conclude(error)

    async def _read_before(self, saver: PatientSaver) -> Before:
        before = await read_before(saver, self.run_row, None)
        if before is None:
            others = await claims.earlier_message_ids(
                self._parts.database, thread_id=self.run_row.thread_id, run_id=self.run_row.run_id
            )
            before = await read_before(saver, self.run_row, frozenset(others))
        if before is None:
            raise RuntimeError("the thread's checkpoint could not be read")
        return before

    async def _record(self, agent: Agent, durability: str) -> bool:
        facts = manifests.manifest(
            agent=agent.name,
            digest=agent.digest,
            model=self._parts.model,
            limits=self._limits.as_json(),
            durability=durability,
            revision=self._parts.revision,
        )
        fingerprint = manifests.fingerprint(facts)
        self._span.set_attribute(telemetry.FINGERPRINT, fingerprint)
        first = await claims.record_manifest(
            self._parts.database,
            run_id=self.run_row.run_id,
            attempt=self.run_row.attempt,
            owner=self._owner.owner,
            manifest=json_text(facts),
            fingerprint=fingerprint,
        )
        if first is not None and first != fingerprint:
            log.warning("this attempt executes something else than the run's manifest", manifest=first)
        return first is not None

    async def _invoke(self, agent: Agent, before: Before, durability: str) -> BaseException | None:
        """Execute the graph until it ends, raises or is stopped; return what it raised."""
        with self._parts.tracer.start_as_current_span(
            telemetry.SPAN_INVOKE_AGENT,
            attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent.name},
        ) as span:
            self._observer = RunObserver(self.buffer, on_tool=self.buffer.picture.tool, tracer=self._parts.tracer)
            self.buffer.on_first_output = self._first_output
            self._activity = Activity(started_at=time.monotonic(), pieces=self.buffer.activity)
            self._times.prepared()
            self._span.add_event("prepared")
            graph = asyncio.create_task(self._consume(before, durability), name=f"graph {self._id}")
            stop = asyncio.create_task(self.signal.event.wait(), name=f"stop {self._id}")
            try:
                await asyncio.wait({graph, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop.cancel()
                if not graph.done():
                    graph.cancel()
                    await asyncio.wait({graph}, timeout=STOP_SECONDS)
            if not graph.done():
                log.error("graph did not stop; it is left behind, fenced off")
                graph.add_done_callback(_ask)
                return None
            if graph.cancelled():
                return None if self.signal.reason is not None else asyncio.CancelledError("the graph cancelled itself")
            error = graph.exception()
            if error is not None:
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            return error

    def _first_output(self) -> None:
        self._times.first_output()
        self._span.add_event("first_output")

    async def _consume(self, before: Before, durability: str) -> None:
        assert self._graph is not None
        assert self._observer is not None
        current_sink.set(self.buffer)
        stream = self._graph.stream(resumed=before.resumed, observer=self._observer, durability=durability)
        async with aclosing(stream) as items:
            async for item in items:
                if isinstance(item, MessagePiece):
                    self._message(item)
                else:
                    self.buffer.emit(item.event, item.data)

    def _message(self, piece: MessagePiece) -> None:
        """Tell a chunk of a foreign model, or a complete message that was not told yet."""
        delta = delta_of(piece.message)
        if delta is not None:
            sink = self.buffer.open_message(message_id(piece.message), piece.metadata)
            if delta.reasoning:
                sink.reasoning(delta.reasoning)
            if delta.text:
                sink.text(delta.text)
            for call in delta.calls:
                sink.tool_call(
                    call.get("index") or 0, id=call.get("id"), name=call.get("name"), args=call.get("args") or ""
                )
            return
        complete = complete_message(piece.message)
        if complete is not None:
            self.buffer.complete(*complete, piece.metadata)

    # --- the ways out ---------------------------------------------------------------------------------------------

    async def _conclude(self, error: BaseException | None) -> str:
        reason = self.signal.reason
        if reason is Stop.LOST:
            return self._silent()
        if reason is Stop.CANCEL:
            return await self._stopped(Ending("cancelled"))
        if reason is Stop.TIME_LIMIT:
            which = self.signal.which
            told = Failure(Verdict.FAIL, "timeout", f"the time limit {which} is used up", {"which": which})
            return await self._stopped(Ending("failed", error=told.as_json()))
        if reason is Stop.HAND_BACK:
            return await self._hand_back(Failure(Verdict.HAND_BACK))
        if isinstance(error, asyncio.CancelledError):
            return await self._retry(Failure(Verdict.RETRY, "graph_error", "the graph cancelled itself"))
        if error is not None:
            return await self._failed(error)
        return await self._completed()

    async def _completed(self) -> str:
        assert self._graph is not None
        assert self._before is not None
        after = await self._graph.after(self._before)
        if after.paused or after.interrupts:
            self.buffer.picture.interrupts = list(after.interrupts)
            self.buffer.emit(EventName.INTERRUPT, json_bytes({"questions": after.interrupts}))
            return await self._end(Ending("interrupted", interrupts=after.interrupts, messages=after.messages))
        if after.output_message_id is None and after.checkpoint_id is None:
            missing = Failure(Verdict.FAIL, "output_missing", "the graph left neither a message nor a checkpoint")
            return await self._end(Ending("failed", error=missing.as_json(), messages=after.messages))
        checkpoint = after.checkpoint_id if after.output_message_id is None else None
        return await self._end(
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
            return self._silent()
        if failure.verdict is Verdict.HAND_BACK:
            return await self._hand_back(failure)
        if failure.verdict is Verdict.RETRY:
            return await self._retry(failure)
        return await self._stopped(Ending("failed", error=failure.as_json()))

    async def _stopped(self, ending: Ending) -> str:
        """End a run that was cut off: partial text enters the transcript and the checkpoint."""
        partials = [
            (message.partial(), message.node) for message in self.buffer.picture.open_messages() if message.top_level
        ]
        messages: list[TranscriptMessage] = []
        try:
            async with asyncio.timeout(STATE_SECONDS):
                messages += await self._keep(partials)
        except FenceLost:
            return self._silent()
        except Exception as error:  # noqa: BLE001  # the author's reducers and nodes: the run ends all the same
            log.warning("the checkpoint does not hold the cut-off messages", error=f"{type(error).__name__}: {error}")
        known = {message.message_id for message in messages}
        messages += [partial for partial, _ in partials if partial.message_id not in known]
        return await self._end(replace(ending, messages=messages))

    async def _keep(self, partials: Sequence[tuple[TranscriptMessage, str]]) -> list[TranscriptMessage]:
        if self._graph is None or self._before is None:
            return []
        after: After = await self._graph.after(self._before)
        told = {message.message_id for message in after.messages}
        left = [(partial, node) for partial, node in partials if partial.message_id not in told]
        answers: list[Any] = await self._graph.keep_partial(left, after)
        return [*after.messages, *(partial for partial, _ in left), *answers]

    async def _end(self, ending: Ending) -> str:
        await self._times.settle(TIMES_SECONDS)
        if self._observer is not None:
            ending = replace(ending, usage=dict(self._observer.usage))
        try:
            ended = await self._closer.end(ending, slot_freed=self._give_slot_back)
        except EndingFailed as error:
            log.error("PostgreSQL refused the end", exc_info=error)
            refused = Failure(Verdict.FAIL, "graph_error", f"the result could not be stored ({error})")
            ended = await self._closer.end(Ending("failed", error=refused.as_json()), slot_freed=self._give_slot_back)
        return self._told(ended)

    def _told(self, ended: Ended | None) -> str:
        if ended is None:
            return self._silent()
        self._span.set_attribute(telemetry.RUN_STATE, ended.state)
        log.info("run ended", state=ended.state)
        return ended.state

    async def _retry(self, failure: Failure) -> str:
        figures = self._parts.figures
        faults = self.run_row.faults + 1
        if faults >= figures.max_faults:
            return await self._end_after_faults(failure)
        back_off = figures.fault_back_off_seconds[min(faults, len(figures.fault_back_off_seconds)) - 1]
        return await self._hand_back(failure, fault=True, back_off_seconds=back_off)

    async def _end_after_faults(self, failure: Failure) -> str:
        return await self._stopped(Ending("failed", error=failure.as_json()))

    async def _hand_back(self, failure: Failure, *, fault: bool = False, back_off_seconds: float = 0.0) -> str:
        error: dict[str, object] | None = dict(failure.as_json()) if failure.message else None
        if await self._closer.hand_back(fault=fault, back_off_seconds=back_off_seconds, error=error):
            log.info("handed back", fault=fault)
            self.buffer.close()
            return "handed_back"
        if await self._cancel_waits():
            return await self._stopped(Ending("cancelled"))
        return self._silent()

    async def _cancel_waits(self) -> bool:
        try:
            return await self._closer.cancel_waits()
        except ServiceError:
            return False

    def _silent(self) -> str:
        log.warning("the run is not this attempt's any more; nothing written, nothing told")
        self.buffer.close()
        return "lost"

    def _give_slot_back(self, more: bool) -> None:
        if self.holds_slot:
            self.holds_slot = False
            self._parts.slot_freed(more)


def _ns(moment: Any) -> int:
    return int(moment.timestamp() * 1_000_000_000)


def _ask(task: asyncio.Task[None]) -> None:
    """Ask an abandoned task for its result, so that its error is not reported as never retrieved."""
    if not task.cancelled():
        task.exception()
