"""RunService, the calls about requests: submit, read, cancel, continue."""

from __future__ import annotations

from typing import Any

from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb
from headrace_contract.telemetry import OUTCOME, REQUEST_ID, RUN_ID, SPAN_INTAKE, THREAD_ID
from headrace_kit.ids import new_id, parse_id
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from run_worker import errors
from run_worker.adapters import intake, requests
from run_worker.domain import inputs, pages
from run_worker.handlers import replies
from run_worker.handlers.support import Control, check_size, checked, user

_STRATEGIES = {
    run_pb2.MULTITASK_STRATEGY_UNSPECIFIED: "enqueue",
    run_pb2.MULTITASK_STRATEGY_ENQUEUE: "enqueue",
    run_pb2.MULTITASK_STRATEGY_REJECT: "reject",
}


class RequestCalls:
    """Mixed into RunService."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._tracer = trace.get_tracer("headrace.run_worker")

    async def SubmitRequest(self, request: pb.SubmitRequestRequest, context: Any) -> pb.SubmitRequestResponse:  # noqa: N802  # proto
        """Take a submission in, by one transaction, and wake an executor for the run that it made."""
        uid = user()
        thread_id = parse_id(request.thread_id, kind="thread")
        submission = self._checked_submission(request, thread_id=str(thread_id))
        request_id, run_id = new_id(), new_id()
        with self._tracer.start_as_current_span(SPAN_INTAKE, attributes={THREAD_ID: str(thread_id)}) as span:
            carrier: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(carrier)
            taken = await intake.take_in(
                self._control.database,
                uid=uid,
                thread_id=thread_id,
                request_id=request_id,
                run_id=run_id,
                idempotency_key=request.idempotency_key or None,
                submission=submission,
                traceparent=carrier.get("traceparent", ""),
                limits=self._control.limits,
            )
            span.set_attributes(
                {
                    REQUEST_ID: str(taken.request["request_id"]),
                    RUN_ID: str(taken.request["run_id"]),
                    OUTCOME: "replayed" if taken.replayed else taken.request["state"],
                }
            )
        if taken.dispatched:
            self._control.aftermath.dispatched()
        return pb.SubmitRequestResponse(request=replies.request(taken.request), replayed=taken.replayed)

    async def GetRequest(self, request: pb.GetRequestRequest, context: Any) -> pb.GetRequestResponse:  # noqa: N802  # proto
        """Get a request."""
        request_id = parse_id(request.request_id, kind="request")
        row = await requests.get_request(self._control.database, request_id=request_id, uid=user())
        return pb.GetRequestResponse(request=replies.request(row))

    async def ListRequests(self, request: pb.ListRequestsRequest, context: Any) -> pb.ListRequestsResponse:  # noqa: N802  # proto
        """List a thread's requests, newest first."""
        uid = user()
        thread_id = parse_id(request.thread_id, kind="thread")
        within = pages.scope("requests", uid, thread_id)
        with checked():
            size = pages.page_size(request.page_size, default=pages.LIST_DEFAULT, maximum=pages.LIST_MAX)
            before, before_id = pages.decode_time_key(within, request.page_token)
        rows = await requests.list_requests(
            self._control.database,
            thread_id=thread_id,
            uid=uid,
            before=before,
            before_id=before_id,
            limit=size + 1,
        )
        shown, last = replies.page(replies.request, rows, size=size)
        token = "" if last is None else pages.encode_time_key(within, last["created_at"], last["request_id"])
        return pb.ListRequestsResponse(requests=shown, next_page_token=token)

    async def CancelRequest(self, request: pb.CancelRequestRequest, context: Any) -> pb.CancelRequestResponse:  # noqa: N802  # proto
        """Cancel a queued request."""
        request_id = parse_id(request.request_id, kind="request")
        row = await requests.cancel_request(self._control.database, request_id=request_id, uid=user())
        return pb.CancelRequestResponse(request=replies.request(row))

    async def ContinueThread(self, request: pb.ContinueThreadRequest, context: Any) -> pb.ContinueThreadResponse:  # noqa: N802  # proto
        """Dispatch the head of a paused thread's queue."""
        thread_id = parse_id(request.thread_id, kind="thread")
        row = await requests.continue_thread(self._control.database, thread_id=thread_id, uid=user())
        self._control.aftermath.dispatched()
        return pb.ContinueThreadResponse(request=replies.request(row))

    def _checked_submission(self, request: pb.SubmitRequestRequest, *, thread_id: str) -> inputs.Submission:
        size = len(request.input) + len(request.config) + len(request.context) + len(request.metadata)
        check_size(size, limit=self._control.body_bytes, field="input")
        strategy = _STRATEGIES.get(request.multitask_strategy)
        if strategy is None:
            raise errors.strategy_unsupported(_strategy_name(request.multitask_strategy))
        with checked():
            inputs.check_text(request.idempotency_key, field="idempotency_key", limit=inputs.MAX_KEY)
            return inputs.check_submission(
                inputs.Body(
                    input=request.input,
                    config=request.config,
                    context=request.context,
                    metadata=request.metadata,
                    stream_modes=request.stream_modes,
                    stream_subgraphs=request.stream_subgraphs,
                    durability=request.durability,
                    multitask_strategy=strategy,
                ),
                thread_id=thread_id,
                mint_id=lambda: str(new_id()),
            )


def _strategy_name(number: int) -> str:
    value = run_pb2.MultitaskStrategy.DESCRIPTOR.values_by_number.get(number)
    return str(number) if value is None else value.name.removeprefix("MULTITASK_STRATEGY_").lower()
