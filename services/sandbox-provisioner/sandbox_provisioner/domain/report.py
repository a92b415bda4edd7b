"""What was found out about the container engine, and the sentence that tells it to a caller."""

from __future__ import annotations

from dataclasses import dataclass

NOT_BUILT = "this release does not make sandboxes yet"
"""True until the sandbox backend exists; `Describe` must not promise what no call keeps."""

NEXT_STEP = "use agents and tools that need no sandbox"


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The result of one look at the engine. Either `engine` or `problem` is set."""

    host: str
    """Address that was looked at."""
    engine: str = ""
    """`docker`, or empty when none answered."""
    version: str = ""
    engine_id: str = ""
    """The engine's own id; the same over its restarts."""
    subnets_free: int = 0
    problem: str = ""
    """Why there is no engine."""

    @property
    def unavailable_reason(self) -> str:
        """Return why no sandbox can be made, with the next step."""
        if self.engine:
            return f"{self.engine} {self.version} answers at {self.host}, but {NOT_BUILT}; {NEXT_STEP}"
        return (
            f"no container engine answers at {self.host}: {self.problem};"
            f" start one or set HEADRACE_DOCKER_HOST; also, {NOT_BUILT}: {NEXT_STEP}"
        )
