"""What a person can do about each error: by its reason where that says more than its type, else by its type."""

from __future__ import annotations

from headrace_client import errors

ANSWER_LATER = (
    "Answering comes with a later release. Until then the thread can only be given up: "
    "`headrace threads delete {thread_id}`; `headrace run` without --thread begins a new one."
)

BY_REASON = {
    "KEY_INVALID": "`make up` prints the key of this deployment; set HEADRACE_API_KEY to it, or unset it to use that "
    "key here. A first key that was revoked is replaced by `make down && make up`.",
    "KEY_MISSING": "Set HEADRACE_API_KEY; `make up` prints the key of this deployment.",
    "KEY_NOT_FOUND": "`headrace keys list` shows the ids of keys.",
    "THREAD_INTERRUPTED": ANSWER_LATER,
    "THREAD_BUSY": "`headrace ps --thread {thread_id}` shows its runs. Wait for them, `headrace cancel RUN`, or add "
    "`--strategy enqueue` (run) or `--cancel` (threads delete).",
    "THREAD_NOT_FOUND": "`headrace threads` lists your threads.",
    "RUN_NOT_FOUND": "`headrace ps` lists your runs.",
    "AGENT_NOT_FOUND": "`headrace agents` lists the agents.",
    "IDEMPOTENCY_KEY_REUSED": "Send the very same text again, or use another --idempotency-key.",
}

BY_TYPE: dict[type[errors.HeadraceError], str] = {
    errors.Unreachable: "Is it up? `headrace status` shows; `headrace up` starts it.",
    errors.NotAuthenticated: "Set HEADRACE_API_KEY to a valid key; `make up` prints the key of this deployment.",
    errors.Forbidden: "Use a key with that scope; `headrace keys create --scope …` makes one.",
    errors.NotFound: "`headrace ps` lists your runs, `headrace threads` your threads.",
    errors.Conflict: "`headrace ps` shows what is active.",
    errors.RateLimited: "Wait and try again; `headrace ps` shows what is active.",
    errors.ServerError: "`headrace status` and `headrace logs` show why.",
    errors.StreamLost: "The run goes on without viewers; `headrace follow` resumes.",
    errors.StreamCorrupt: "This is a defect of the server; please report it.",
}

BY_RUN_ERROR = {
    "graph_error": "`headrace logs run-worker` has the traceback.",
    "faults_exhausted": "`headrace logs run-worker` says what happened to each attempt.",
    "model_refused": "HEADRACE_MODEL_BASE_URL, HEADRACE_MODEL_NAME and HEADRACE_MODEL_API_KEY name the model.",
    "model_unavailable": "HEADRACE_MODEL_BASE_URL says where the model is; `headrace logs run-worker` has the tries.",
    "agent_missing": "`headrace agents` lists the agents.",
}
"""By the type of a failed run's error."""


def next_step(error: errors.HeadraceError) -> str:
    """Return what to do about an error, empty when the error says it itself."""
    step = BY_REASON.get(error.reason) or BY_TYPE.get(type(error), "")
    step = step.replace("{thread_id}", str(error.metadata.get("thread_id") or "THREAD"))
    if isinstance(error, errors.RateLimited) and error.retry_after_seconds:
        step = f"Try again in {error.retry_after_seconds:g} s. {step}"
    return step
