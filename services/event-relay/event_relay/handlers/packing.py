"""Events as messages: batches of at most a given size, heartbeats."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from google.protobuf.timestamp_pb2 import Timestamp
from headrace.relay.v1 import relay_service_pb2 as pb

EVENT_OVERHEAD_BYTES = 96
"""More than what an event takes on the wire beside its data: two short strings, tags and lengths."""


def batches(events: Iterable[pb.Event], max_bytes: int) -> Iterator[pb.FollowRunResponse]:
    """Pack events in order; a batch is larger than `max_bytes` only when its single event is."""
    batch: list[pb.Event] = []
    size = 0
    for event in events:
        more = len(event.data) + EVENT_OVERHEAD_BYTES
        if batch and size + more > max_bytes:
            yield pb.FollowRunResponse(batch=pb.EventBatch(events=batch))
            batch, size = [], 0
        batch.append(event)
        size += more
    if batch:
        yield pb.FollowRunResponse(batch=pb.EventBatch(events=batch))


def heartbeat() -> pb.FollowRunResponse:
    """Return a sign of life with this host's clock."""
    sent_at = Timestamp()
    sent_at.FromNanoseconds(time.time_ns())
    return pb.FollowRunResponse(heartbeat=pb.Heartbeat(sent_at=sent_at))
