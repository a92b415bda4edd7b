"""The JSON objects of the HTTP API. Fields a server adds later are simply there; ids are texts, times ISO 8601 UTC."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

RunState = Literal["queued", "pending", "running", "completed", "failed", "cancelled", "interrupted"]

TERMINAL_STATES: frozenset[str] = frozenset({"completed", "failed", "cancelled", "interrupted"})
"""States that a run does not leave."""

TIMES = ("created_at", "started_at", "prepared_at", "first_output_at", "finished_at")
"""The five recorded times of a run, in their order."""

LATENCIES = (
    "dispatch_latency_ms",
    "preparation_latency_ms",
    "model_first_output_latency_ms",
    "first_output_latency_ms",
    "total_latency_ms",
)
"""The five latencies that the server derives from them."""


class Thread(TypedDict):
    """A conversation of one user with one agent."""

    thread_id: str
    agent: str
    title: str | None
    metadata: dict[str, Any]
    state: str
    active_run_id: str | None
    latest_run_id: str | None
    created_at: str
    updated_at: str


class Wait(TypedDict):
    """Why something does not execute yet."""

    wait_reason: str
    since: str | None
    run_id: str | None
    position: int


class Request(TypedDict):
    """One submission to a thread."""

    request_id: str
    thread_id: str
    run_id: str
    agent: str
    state: str
    wait: NotRequired[Wait | None]
    created_at: str
    dispatched_at: str | None
    trace_id: str
    metadata: dict[str, Any]


class Timing(TypedDict):
    """Five times and the five latencies derived from them; what is missing is None."""

    created_at: str | None
    started_at: str | None
    prepared_at: str | None
    first_output_at: str | None
    finished_at: str | None
    dispatch_latency_ms: int | None
    preparation_latency_ms: int | None
    model_first_output_latency_ms: int | None
    first_output_latency_ms: int | None
    total_latency_ms: int | None


class RunError(TypedDict):
    """Why a run failed."""

    type: str
    message: str
    details: dict[str, Any]


class Run(TypedDict):
    """The durable execution of a request."""

    run_id: str
    request_id: str
    thread_id: str
    agent: str
    state: RunState
    ordinal: int
    attempt: int
    faults: int
    wait: NotRequired[Wait | None]
    cancel_requested_at: str | None
    timing: Timing
    error: RunError | None
    output_message_id: str | None
    usage: dict[str, Any]
    interrupts: list[Any]
    trace_id: str
    metadata: dict[str, Any]


class Message(TypedDict):
    """One entry of a thread's transcript."""

    message_id: str
    role: str
    content: Any
    reasoning: str | None
    tool_calls: list[dict[str, Any]]
    tool_call_id: str | None
    name: str | None
    partial: bool
    run_id: str
    created_at: str


class Result(TypedDict):
    """What a run ended with; `output` is None until then, and for graphs without messages, whose `values` count."""

    run: Run
    output: Message | None
    values: NotRequired[dict[str, Any] | None]


class ThreadPage(TypedDict):
    """Threads, last changed first."""

    threads: list[Thread]
    next_page_token: str | None


class RunPage(TypedDict):
    """Runs, newest first."""

    runs: list[Run]
    next_page_token: str | None


class MessagePage(TypedDict):
    """Messages, oldest first, and the runs that they name."""

    messages: list[Message]
    runs: list[Run]
    next_page_token: str | None


class Agent(TypedDict):
    """An agent that can be talked to."""

    name: str
    description: str | None
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    digest: str
    updated_at: str


class ApiKey(TypedDict):
    """An API key; `key` itself is in the answer to its creation only."""

    key_id: str
    uid: str
    scopes: list[str]
    label: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    key: NotRequired[str]
