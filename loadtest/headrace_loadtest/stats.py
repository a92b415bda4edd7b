"""What the scripted provider counts, so that a test can ask what the model's side saw."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

FACTS_KEPT = 1000
"""Requests whose facts are remembered: more than a load level makes at once."""
USER_TEXT_KEPT = 120
"""Characters of the user's text in a request's facts: enough to find one's own request."""


@dataclass(slots=True)
class Counters:
    """Totals of one model name."""

    requests: int = 0
    open_streams: int = 0
    tokens: int = 0
    completed: int = 0
    failures: int = 0
    """Answers with an error status, or broken by the script."""
    disconnects: int = 0
    """Sockets that the client closed before the answer's end."""


@dataclass(slots=True)
class Facts:
    """One request."""

    model: str
    user_text: str
    stream: bool
    messages: int
    turn: int
    tools: list[str]
    ideal_seconds: float
    outcome: str = "open"
    """open, completed, failed, disconnected (by the client), reset, closed or error (by the script)."""
    status: int = 200
    tokens: int = 0
    late_ms: float = 0.0
    """The most that a token was behind its schedule."""
    seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)


class Stats:
    """Counters per model and the last requests' facts."""

    def __init__(self) -> None:
        self.models: dict[str, Counters] = {}
        self.last: deque[Facts] = deque(maxlen=FACTS_KEPT)

    def reset(self) -> None:
        """Forget everything but the streams that are open."""
        self.last.clear()
        self.models = {
            name: Counters(open_streams=counters.open_streams)
            for name, counters in self.models.items()
            if counters.open_streams
        }

    def begin(self, facts: Facts) -> None:
        """Count a request that came in."""
        self.last.append(facts)
        counters = self._of(facts)
        counters.requests += 1
        counters.open_streams += 1

    def end(self, facts: Facts, outcome: str) -> None:
        """Count a request's end."""
        facts.outcome = outcome
        facts.seconds = round(time.monotonic() - facts.started, 4)
        counters = self._of(facts)
        counters.open_streams -= 1
        counters.tokens += facts.tokens
        if outcome == "completed":
            counters.completed += 1
        elif outcome == "disconnected":
            counters.disconnects += 1
        else:
            counters.failures += 1

    def report(self) -> dict[str, Any]:
        """Return everything as JSON values; `tokens` counts those of open streams too."""
        models = {name: asdict(counters) for name, counters in self.models.items()}
        for facts in self.last:
            if facts.outcome == "open" and facts.model in models:
                models[facts.model]["tokens"] += facts.tokens
        totals = {name: sum(m[name] for m in models.values()) for name in asdict(Counters())}
        last = [asdict(facts) for facts in self.last]
        for entry in last:
            del entry["started"]
        return {"totals": totals, "models": models, "last": last}

    def _of(self, facts: Facts) -> Counters:
        return self.models.setdefault(facts.model, Counters())
