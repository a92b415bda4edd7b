"""What every attempt of this executor shares, and the handle by which others stop one.

Invariant: only a durable cancel is a user's cancel; every other way to stop a run hands it back or says nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from headrace_kit.postgres import Database
from opentelemetry import trace

from run_worker.adapters.claims import ClaimedRun
from run_worker.adapters.graphs import Agent
from run_worker.domain.limits import TimeLimits, Which
from run_worker.loops.flusher import Flusher
from run_worker.loops.renewal import Lease
from run_worker.loops.run_buffer import StreamLimits


class Stop(Enum):
    """Why an attempt is stopped from outside. A later, stronger reason replaces a weaker one."""

    HAND_BACK = 1
    """Drain, or the executor ends: another one goes on."""
    TIME_LIMIT = 2
    CANCEL = 3
    """Durable: PostgreSQL said so."""
    LOST = 4
    """Another attempt owns the run, or the lease is gone: write nothing, tell nothing."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Figures of `[runs]` in budget.toml that an attempt needs."""

    limits: TimeLimits
    fault_back_off_seconds: tuple[float, ...]
    max_faults: int


@dataclass(frozen=True, slots=True)
class ExecutorParts:
    """What attempts work with; made by the composition root."""

    executor_id: UUID
    database: Database
    graph_database: Database
    flusher: Flusher
    lease: Lease
    agents: Mapping[str, Agent]
    figures: RunFigures
    stream_limits: StreamLimits
    tracer: trace.Tracer
    revision: str
    model: str
    slot_freed: Callable[[bool], None]
    """Called when a run gave its slot back; True when it made another run claimable."""


class Signal:
    """The stop of one attempt; the strongest reason wins."""

    def __init__(self) -> None:
        self.reason: Stop | None = None
        self.which: Which | None = None
        """The broken limit, with TIME_LIMIT."""
        self.event = asyncio.Event()

    def set(self, reason: Stop, which: Which | None = None) -> None:
        """Stop the attempt."""
        if self.reason is None or reason.value > self.reason.value:
            self.reason = reason
            self.which = which
        self.event.set()


def limits_of(agent: Agent, figures: RunFigures) -> TimeLimits:
    """Return the time limits of an agent's runs: the budget file's, where the agent does not lower them."""
    base, own = figures.limits, agent.settings
    return TimeLimits(
        run=min(base.run, own.run_timeout_seconds or base.run),
        model_first_byte=min(base.model_first_byte, own.model_first_byte_seconds or base.model_first_byte),
        model_silence=min(base.model_silence, own.model_silence_seconds or base.model_silence),
        tool=min(base.tool, own.tool_timeout_seconds or base.tool),
    )


@dataclass(frozen=True, slots=True)
class Owner:
    """The guard of every write: one attempt of a run and its executor."""

    run_id: UUID
    attempt: int
    owner: UUID

    @classmethod
    def of(cls, run: ClaimedRun, executor_id: UUID) -> Owner:
        """Return the guard of a claimed run."""
        return cls(run_id=run.run_id, attempt=run.attempt, owner=executor_id)
