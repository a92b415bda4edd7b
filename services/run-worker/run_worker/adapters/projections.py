"""The one SELECT of runs and the one of requests, which every answer about them reads.

A run answers from intake on: until its row exists it is the request that is `queued` (or was `cancelled`). Both selects
join requests q, threads t and runs r, and hide deleted threads; callers add only the filter and the order.
The wait columns say the same as the view run_outcome, which belongs to event-relay: a pending run is on its way to its
claim in its first second, and waits for nothing.
"""

from __future__ import annotations

from typing import Final

_WAIT: Final = """
  CASE WHEN r.run_id IS NULL AND q.state = 'queued' THEN
    (SELECT count(*) FROM requests o WHERE o.thread_id = q.thread_id AND o.state = 'queued'
      AND (o.created_at, o.seq) <= (q.created_at, q.seq)) ELSE 0 END AS position,
  CASE WHEN r.run_id IS NULL AND q.state = 'queued' THEN
         CASE t.state WHEN 'paused' THEN 'paused' WHEN 'interrupted' THEN 'interrupted' ELSE 'behind_run' END
       WHEN r.state = 'pending' THEN
         CASE WHEN EXISTS (SELECT FROM runs f WHERE f.thread_id = r.thread_id AND f.runtime_cleanup_pending)
                THEN 'fence'
              WHEN r.not_before > now() THEN 'back_off'
              WHEN greatest(r.created_at, r.not_before) <= now() - interval '1 second' THEN 'no_slot' END
  END AS wait_reason,
  CASE WHEN r.run_id IS NULL AND q.state = 'queued' THEN q.created_at
       WHEN r.state <> 'pending' THEN NULL
       WHEN EXISTS (SELECT FROM runs f WHERE f.thread_id = r.thread_id AND f.runtime_cleanup_pending) THEN r.created_at
       WHEN r.not_before > now()
         THEN coalesce((SELECT max(a.finished_at) FROM attempts a WHERE a.run_id = r.run_id), r.created_at)
       WHEN greatest(r.created_at, r.not_before) <= now() - interval '1 second'
         THEN greatest(r.created_at, r.not_before) END AS wait_since,
  CASE WHEN r.run_id IS NULL AND q.state = 'queued' THEN t.active_run_id END AS wait_run_id
"""

_FROM: Final = """
FROM requests q JOIN threads t USING (thread_id) LEFT JOIN runs r ON r.run_id = q.run_id
"""

REQUESTS: Final = (
    """
SELECT q.request_id, q.thread_id, q.run_id, q.agent, q.state, q.multitask_strategy, q.created_at, q.seq,
  q.dispatched_at, q.traceparent, q.metadata,"""
    + _WAIT
    + _FROM
)
"""Ends before WHERE."""

RUNS: Final = (
    """
SELECT q.run_id, q.request_id, q.thread_id, q.agent, q.traceparent, q.metadata,
  coalesce(r.state, CASE q.state WHEN 'queued' THEN 'queued' ELSE 'cancelled' END) AS state,
  coalesce(r.created_at, q.created_at) AS listed_at,
  coalesce(r.ordinal, 0) AS ordinal, coalesce(r.attempt, 0) AS attempt, coalesce(r.faults, 0) AS faults,
  r.cancel_requested_at, run_timing_json(r) AS timing, r.error, r.output_message_id, r.output_checkpoint_id,
  r.usage, r.interrupts, coalesce(r.runtime_cleanup_pending, false) AS runtime_cleanup_pending,"""
    + _WAIT
    + _FROM
)
"""Ends before WHERE."""
