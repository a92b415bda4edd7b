"""One attempt of a run, from its claim to its end: prepare, execute the graph, and end or hand back.

Invariants: the input is applied once over all attempts; nothing is written or told after the fence is lost; every way
out of here is an end, a hand-back, or silence because another attempt owns the run.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any, Final

import structlog
from headrace_agent.sink import current_sink
from headrace_contract import telemetry
from headrace_contract.projection import EventName
from headrace_kit.errors import ServiceError
from opentelemetry import propagate, trace
from opentelemetry.trace import Status, StatusCode

from run_worker.adapters import claims
from run_worker.adapters.ends import Ending
from run_worker.adapters.failures import Failure, Verdict, judge
from run_worker.adapters.graph_run import (
    Before,
    GraphRun,
    complete_message,
    delta_of,
    message_id,
    read_before,
    run_config,
)
from run_worker.adapters.graph_tasks import as_error
from run_worker.adapters.graphs import Agent
from run_worker.adapters.leases import watch
from run_worker.adapters.observer import RunObserver
from run_worker.adapters.patient_saver import PatientSaver
from run_worker.adapters.saver import Fence, FenceLost
from run_worker.adapters.state_messages import MessagePiece
from run_worker.adapters.stream import metadata_event
from run_worker.domain import manifest as manifests
from run_worker.domain.encoding import json_text
from run_worker.domain.limits import Activity, TimeLimits, broken_limit
from run_worker.loops.attempt import ExecutorParts, Owner, Signal, Stop, limits_of
from run_worker.loops.conclusion import Conclusion, Progress
from run_worker.loops.ending import FLUSH_SECONDS
from run_worker.loops.observed_times import ObservedTimes
from run_worker.loops.run_buffer import RunBuffer

STOP_SECONDS: Final = 5.0
"""How long a stopped graph may take to come to rest; one that does not is left behind, fenced off."""
PRESSURE_SECONDS: Final = 5.0
"""How long a graph's stream waits at a time for a Redis that is slow; after it events may be dropped, and told so."""

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
        self._times = ObservedTimes(
            parts.database, self._owner, flushed=lambda: parts.flusher.flushed(self.buffer, seconds=FLUSH_SECONDS)
        )
        self._progress = Progress()
        self._limits: TimeLimits = parts.figures.limits
        self._activity = Activity(started_at=time.monotonic())
        self._span: trace.Span = trace.INVALID_SPAN
        self._out = Conclusion(
            parts,
            run,
            self.buffer,
            self.signal,
            self._times,
            self._progress,
            owner=self._owner,
            slot_freed=self._give_slot_back,
        )

    # --- from outside ---------------------------------------------------------------------------------------------

    def check_limits(self, now: float) -> None:
        """Stop the attempt if one of its time limits is broken."""
        observer = self._progress.observer
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
                if self._progress.observer is not None:
                    self._progress.observer.close()
                self._give_slot_back(False)
                self._parts.flusher.leave(self.buffer)

    async def _guarded(self) -> str:
        try:
            return await self._execute()
        except asyncio.CancelledError:
            # Not a user's cancel: infrastructure. Another attempt goes on.
            await self._out.closer.hand_back()
            raise
        except FenceLost:
            return self._out.silent()
        except GeneratorExit:
            raise
        except BaseException as error:  # an author's exit must not end the process
            # The run's edge: whatever it is, the run must not stay owned.
            self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            failure = judge(error)
            if failure.verdict is Verdict.STOP:
                return self._out.silent()
            log.error("attempt failed outside its graph", exc_info=error)
            if failure.verdict is Verdict.HAND_BACK:
                return await self._out.hand_back(Failure(Verdict.HAND_BACK, message=failure.message))
            return await self._out.retry(Failure(Verdict.RETRY, "faults_exhausted", failure.message, failure.details))

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
                previous=row.previous,
            ),
        )
        agent = self._parts.agents.get(row.agent)
        if agent is None:
            if row.attempt > 1:
                self.buffer.snapshot()
            known = ", ".join(sorted(self._parts.agents)) or "none"
            message = f"no agent {row.agent!r} is loaded; loaded are: {known}"
            return await self._out.end(
                Ending("failed", error=Failure(Verdict.FAIL, "agent_missing", message).as_json())
            )
        saver = PatientSaver(
            self._parts.graph_database,
            fence=Fence(run_id=row.run_id, attempt=row.attempt, owner=self._owner.owner),
            patience=self._parts.lease.may_stream,
        )
        self._progress.before = before = await self._read_before(saver)
        if row.attempt > 1:
            for own in before.own:
                self.buffer.picture.put(own)
            self.buffer.snapshot()
        self._limits = limits_of(agent, self._parts.figures)
        durability = row.durability or agent.settings.durability
        if not await self._record(agent, durability):
            return self._out.silent()
        graph = await agent.for_run(run_config(row), saver)
        self._progress.graph = run = GraphRun(row, graph, saver, recursion_limit=agent.settings.recursion_limit)
        error = await self._invoke(agent, run, before, durability)
        return await self._out.conclude(error)

    async def _read_before(self, saver: PatientSaver) -> Before:
        before = await read_before(saver, self.run_row, None)
        if before is None:
            others = await claims.earlier_messages(
                self._parts.database, thread_id=self.run_row.thread_id, run_id=self.run_row.run_id
            )
            before = await read_before(saver, self.run_row, others)
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

    async def _invoke(self, agent: Agent, run: GraphRun, before: Before, durability: str) -> BaseException | None:
        """Execute the graph until it ends, raises or is stopped; return what it raised."""
        with self._parts.tracer.start_as_current_span(
            telemetry.SPAN_INVOKE_AGENT,
            attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent.name},
        ) as span:
            observer = RunObserver(self.buffer, on_tool=self.buffer.picture.tool, tracer=self._parts.tracer)
            self._progress.observer = observer
            self.buffer.on_first_output = self._first_output
            self._activity = Activity(started_at=time.monotonic(), pieces=self.buffer.activity)
            self._times.prepared()
            self._span.add_event("prepared")
            graph = asyncio.create_task(self._consume(run, before, observer, durability), name=f"graph {self._id}")
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

    async def _consume(self, run: GraphRun, before: Before, observer: RunObserver, durability: str) -> None:
        current_sink.set(self.buffer)
        try:
            await self._tell(run, before, observer, durability)
        except BaseException as error:  # noqa: BLE001  # raised again
            as_error(error)

    async def _tell(self, run: GraphRun, before: Before, observer: RunObserver, durability: str) -> None:
        stream = run.stream(resumed=before.resumed, observer=observer, told=self.buffer, durability=durability)
        async with aclosing(stream) as items:
            async for item in items:
                if isinstance(item, MessagePiece):
                    self._message(item)
                else:
                    self.buffer.emit(item.event, item.data)
                if self.buffer.pressed() and not self._parts.flusher.away:
                    # A graph may tell faster than Redis takes it; one that is away holds no graph up.
                    await self._parts.flusher.eased(self.buffer, seconds=PRESSURE_SECONDS)

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
