"""RelayService: access and cursor are checked once, at open; then a Viewer shows the run until its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from headrace.relay.v1 import relay_service_pb2 as pb
from headrace.relay.v1 import relay_service_pb2_grpc as pb_grpc
from headrace_contract.projection import EventName
from headrace_contract.telemetry import OUTCOME, RUN_ID, SPAN_FOLLOW
from headrace_kit.auth import require_user
from headrace_kit.ids import parse_id
from opentelemetry import trace

from event_relay.domain.book import TailBook
from event_relay.domain.entry import parse_after
from event_relay.domain.ports import Runs, Streams
from event_relay.errors import (
    cursor_malformed,
    mode_unknown,
    relay_not_ready,
    relay_stopping,
    run_not_found,
    stream_ended,
    too_many_streams,
)
from event_relay.handlers.viewer import Viewer

FULL_NAME = "headrace.relay.v1.RelayService"

_MODES = frozenset(EventName)


class FollowService(pb_grpc.RelayServiceServicer):
    """The RPCs of the relay."""

    def __init__(
        self, book: TailBook, streams: Streams, runs: Runs, *, relay: Mapping[str, Any], streams_max: int
    ) -> None:
        """`relay` is the budget's table of that name; `streams_max` the most that this replica follows."""
        self._book = book
        self._streams = streams
        self._runs = runs
        self._relay = relay
        self._streams_max = streams_max
        self._tracer = trace.get_tracer("event_relay")

    async def FollowRun(  # noqa: N802  # the proto's name
        self, request: pb.FollowRunRequest, context: Any
    ) -> AsyncIterator[pb.FollowRunResponse]:
        """See the proto."""
        self._admit()
        uid = require_user()
        run_id = parse_id(request.run_id, kind="run")
        outcome = await self._runs.open(run_id, uid)
        self._book.postgres.recovered()
        if outcome is None:
            raise run_not_found(request.run_id)
        try:
            after = parse_after(request.after)
        except ValueError:
            raise cursor_malformed(request.after) from None
        for mode in request.modes:
            if mode not in _MODES:
                raise mode_unknown(mode)
        if outcome.end_id is not None and after >= outcome.end_id:
            raise stream_ended(request.after)

        viewer = Viewer(
            self._book, self._streams, self._runs, relay=self._relay, after=after, modes=frozenset(request.modes)
        )
        span = self._tracer.start_span(SPAN_FOLLOW, attributes={RUN_ID: str(run_id)})
        tail = self._book.join(run_id, outcome, viewer)
        told = "broken"
        try:
            viewer.join(tail, outcome)
            # Tells the caller that it is let in, before there is anything to say.
            await context.send_initial_metadata(())
            async with aclosing(viewer.messages()) as messages:
                async for message in messages:
                    yield message
            told = "end"
        finally:
            self._book.leave(tail, viewer)
            span.set_attribute(OUTCOME, told)
            span.end()

    def _admit(self) -> None:
        if self._book.stopping:
            raise relay_stopping()
        if not self._book.ready:
            raise relay_not_ready()
        if self._book.viewers >= self._streams_max:
            raise too_many_streams(self._streams_max)
