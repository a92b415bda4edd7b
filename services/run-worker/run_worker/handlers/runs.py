"""RunService, the calls about runs and agents: read, wait, cancel, list."""

from __future__ import annotations

from typing import Any, Final

from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb
from headrace_contract.telemetry import OUTCOME, RUN_ID, SPAN_CANCEL
from headrace_kit.errors import InvalidArgument
from headrace_kit.ids import parse_id
from opentelemetry import trace

from run_worker.adapters import agents, messages, runs, states
from run_worker.domain import pages, sizes
from run_worker.handlers import replies
from run_worker.handlers.support import BAD_INPUT, Control, checked, user

WAIT_DEFAULT_SECONDS: Final = 30.0
WAIT_MAX_SECONDS: Final = 60.0
DEADLINE_MARGIN_SECONDS: Final = 0.25
"""Left of the caller's deadline for the answer itself."""


_STATES: Final = [value for value in run_pb2.Run.State.DESCRIPTOR.values if value.number]


class RunCalls:
    """Mixed into RunService."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._tracer = trace.get_tracer("headrace.run_worker")

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:  # noqa: N802  # proto
        """Get a run."""
        run_id = parse_id(request.run_id, kind="run")
        row = await runs.get_run(self._control.database, run_id=run_id, uid=user())
        return pb.GetRunResponse(run=replies.run(row))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:  # noqa: N802  # proto
        """List runs, newest first."""
        uid = user()
        thread_id = parse_id(request.thread_id, kind="thread") if request.thread_id else None
        states = sorted({_state_name(state) for state in request.states})
        within = pages.scope("runs", uid, thread_id, *states)
        with checked():
            size = pages.page_size(request.page_size, default=pages.LIST_DEFAULT, maximum=pages.LIST_MAX)
            before, before_id = pages.decode_time_key(within, request.page_token)
        rows = await runs.list_runs(
            self._control.database,
            uid=uid,
            thread_id=thread_id,
            states=states,
            before=before,
            before_id=before_id,
            limit=size + 1,
        )
        shown, last = replies.page(replies.run, rows, size=size)
        token = "" if last is None else pages.encode_time_key(within, last["listed_at"], last["run_id"])
        return pb.ListRunsResponse(runs=shown, next_page_token=token)

    async def CancelRun(self, request: pb.CancelRunRequest, context: Any) -> pb.CancelRunResponse:  # noqa: N802  # proto
        """Commit a durable cancel, then tell whom it concerns."""
        uid = user()
        run_id = parse_id(request.run_id, kind="run")
        with self._tracer.start_as_current_span(SPAN_CANCEL, attributes={RUN_ID: str(run_id)}) as span:
            cancelled = await runs.cancel_run(self._control.database, run_id=run_id, uid=uid)
            self._control.aftermath.cancelled(run_id, cancelled)
            row = await runs.get_run(self._control.database, run_id=run_id, uid=uid)
            span.set_attribute(OUTCOME, row["state"])
        return pb.CancelRunResponse(run=replies.run(row))

    async def GetRunResult(self, request: pb.GetRunResultRequest, context: Any) -> pb.GetRunResultResponse:  # noqa: N802  # proto
        """Get what a run ended with; the run's state says whether it has ended."""
        run_id = parse_id(request.run_id, kind="run")
        row = await runs.get_run(self._control.database, run_id=run_id, uid=user())
        result = pb.GetRunResultResponse(run=replies.run(row))
        if row["output_message_id"] is not None:
            output = await messages.get_message(
                self._control.database, run_id=run_id, message_id=row["output_message_id"]
            )
            if output is not None:
                result.output.CopyFrom(replies.message(output))
        if row["output_checkpoint_id"] is not None:
            state = await states.read_state(
                self._control.graph_read, thread_id=row["thread_id"], checkpoint_id=row["output_checkpoint_id"]
            )
            result.values = sizes.bounded_object(
                state.values, limit=min(sizes.VALUE_BYTES, sizes.ANSWER_BYTES - result.ByteSize())
            )
        return result

    async def WaitRun(self, request: pb.WaitRunRequest, context: Any) -> pb.WaitRunResponse:  # noqa: N802  # proto
        """Return when the run is terminal, or when the timeout or most of the caller's deadline has passed."""
        uid = user()
        run_id = parse_id(request.run_id, kind="run")
        seconds = _wait_seconds(request, context.time_remaining())
        row = await runs.get_run(self._control.database, run_id=run_id, uid=uid)
        if row["state"] in ("queued", "pending", "running"):
            await self._control.waits.wait(run_id, seconds=seconds)
            row = await runs.get_run(self._control.database, run_id=run_id, uid=uid)
        return pb.WaitRunResponse(run=replies.run(row))

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Any) -> pb.ListAgentsResponse:  # noqa: N802  # proto
        """List the agents by name; they are the same for every user."""
        within = pages.scope("agents", user())
        with checked():
            size = pages.page_size(request.page_size, default=pages.LIST_DEFAULT, maximum=pages.LIST_MAX)
            after = pages.decode_name_key(within, request.page_token)
        rows = await agents.list_agents(self._control.database, after=after, limit=size + 1)
        shown, last = replies.page(replies.agent, rows, size=size)
        token = "" if last is None else pages.encode_name_key(within, last["name"])
        return pb.ListAgentsResponse(agents=shown, next_page_token=token)


def _wait_seconds(request: pb.WaitRunRequest, remaining: float | None) -> float:
    seconds = WAIT_DEFAULT_SECONDS
    if request.HasField("timeout"):
        seconds = request.timeout.seconds + request.timeout.nanos / 1e9
        if seconds < 0:
            raise InvalidArgument(f"timeout: {seconds} s is negative", reason=BAD_INPUT, field="timeout")
    seconds = min(seconds, WAIT_MAX_SECONDS)
    return seconds if remaining is None else min(seconds, remaining - DEADLINE_MARGIN_SECONDS)


def _state_name(number: int) -> str:
    value = run_pb2.Run.State.DESCRIPTOR.values_by_number.get(number)
    if value is None or number == run_pb2.Run.STATE_UNSPECIFIED:
        known = ", ".join(f"{v.number} {v.name.removeprefix('STATE_').lower()}" for v in _STATES)
        raise InvalidArgument(
            f"states: {number} is no state of a run; these are {known}", reason=BAD_INPUT, field="states"
        )
    return value.name.removeprefix("STATE_").lower()
