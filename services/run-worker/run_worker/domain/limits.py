"""Time limits of a run, whatever model or tool it uses, and which of them is broken."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal


class LeaseOver(Exception):
    """The run's lease is over: no model and no tool may be called any more."""


Which = Literal["run", "model_first_byte", "model_silence", "tool"]


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds; an agent may lower the budget file's figures, never raise them."""

    run: float
    model_first_byte: float
    model_silence: float
    tool: float

    def as_json(self) -> dict[str, float]:
        """Return the figures for the manifest."""
        return {
            "run_seconds": self.run,
            "model_first_byte_seconds": self.model_first_byte,
            "model_silence_seconds": self.model_silence,
            "tool_seconds": self.tool,
        }


@dataclass(slots=True)
class OpenCall:
    """A model call or a tool call in flight; times are monotonic seconds."""

    started_at: float
    name: str
    heard_at: float | None = None
    """Last piece of a model's answer; None before the first."""


@dataclass(slots=True)
class Activity:
    """What a run is doing, as its callbacks and its sink see it."""

    started_at: float
    pieces: int = 0
    """Pieces that the sink had received when last looked at."""


def broken_limit(
    now: float,
    limits: TimeLimits,
    activity: Activity,
    *,
    pieces: int,
    models: Collection[OpenCall],
    tools: Collection[OpenCall],
) -> Which | None:
    """Return the limit that is broken at `now`, after noting whether the sink received more pieces."""
    if pieces != activity.pieces:
        activity.pieces = pieces
        for call in models:
            call.heard_at = now
    if now - activity.started_at > limits.run:
        return "run"
    for call in models:
        if call.heard_at is None:
            if now - call.started_at > limits.model_first_byte:
                return "model_first_byte"
        elif now - call.heard_at > limits.model_silence:
            return "model_silence"
    if any(now - call.started_at > limits.tool for call in tools):
        return "tool"
    return None
