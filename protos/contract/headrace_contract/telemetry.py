"""The one registry of span names and of our own attributes. Tests read it: a span that is not here is a defect.

GenAI, RPC and HTTP attributes follow OpenTelemetry's semantic conventions; ours start with `headrace.`.
"""

from __future__ import annotations

from typing import Final

SPAN_INTAKE: Final = "headrace.intake"
"""run-worker: the intake transaction."""
SPAN_QUEUE_WAIT: Final = "headrace.queue_wait"
"""run-worker: run created until claimed; recorded by the executor that claimed it."""
SPAN_ATTEMPT: Final = "headrace.attempt"
"""run-worker: one executor's try, claim to terminal commit or hand-back."""
SPAN_INVOKE_AGENT: Final = "invoke_agent"
"""run-worker: the graph's execution inside an attempt (GenAI)."""
SPAN_CHAT: Final = "chat"
"""run-worker: one model call inside a run (GenAI), whatever model the graph uses."""
SPAN_EXECUTE_TOOL: Final = "execute_tool"
"""run-worker: one tool call inside a run (GenAI)."""
SPAN_PUBLISH: Final = "headrace.publish"
"""run-worker: result and end appended to the projection."""
SPAN_FOLLOW: Final = "headrace.follow"
"""event-relay: one viewer's stream; linked to the run, not its child."""
SPAN_CANCEL: Final = "headrace.cancel"
"""run-worker: durable cancel, key and hint."""

SPANS: Final = frozenset(
    {
        SPAN_INTAKE,
        SPAN_QUEUE_WAIT,
        SPAN_ATTEMPT,
        SPAN_INVOKE_AGENT,
        SPAN_CHAT,
        SPAN_EXECUTE_TOOL,
        SPAN_PUBLISH,
        SPAN_FOLLOW,
        SPAN_CANCEL,
    }
)
"""Names of our spans; RPC spans are named `<package>.<Service>/<Method>` and HTTP spans `<METHOD> <route>`."""

RUN_ID: Final = "headrace.run_id"
THREAD_ID: Final = "headrace.thread_id"
REQUEST_ID: Final = "headrace.request_id"
ATTEMPT: Final = "headrace.attempt"
EXECUTOR_ID: Final = "headrace.executor_id"
RUN_STATE: Final = "headrace.run_state"
OUTCOME: Final = "headrace.outcome"
FINGERPRINT: Final = "headrace.fingerprint"

ATTRIBUTES: Final = frozenset({RUN_ID, THREAD_ID, REQUEST_ID, ATTEMPT, EXECUTOR_ID, RUN_STATE, OUTCOME, FINGERPRINT})
"""Our own attribute names."""
