"""The capacity figures of `deploy/budget.toml`, read once at start. Nothing else may hold a capacity number."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RoleBudget:
    """One PostgreSQL role's share of the client budget."""

    name: str
    limit: int
    """CONNECTION LIMIT of the role."""
    pool_cap: int
    """The most connections that one process opens."""
    processes: int
    """Processes that share the role; 0 means as many as there are executors."""
    statement_timeout_ms: int

    def pool_max(self, *, executors: int = 1, reserved: int = 0) -> int:
        """Return the most connections that one process's pool may open.

        `reserved` connections of the share are opened outside the pool by each process (the lease thread's own).
        """
        processes = self.processes or executors
        return max(1, min(self.limit // (processes + 1) - reserved, self.pool_cap))


@dataclass(frozen=True, slots=True)
class Budget:
    """The whole file: roles are typed, the other tables stay mappings of figures by their names in the file."""

    max_connections: int
    client_budget: int
    back_pressure_seconds: float
    roles: Mapping[str, RoleBudget]
    session: Mapping[str, int]
    redis: Mapping[str, int]
    slots: Mapping[str, int]
    runs: Mapping[str, Any]
    stream: Mapping[str, Any]
    relay: Mapping[str, Any]
    limits: Mapping[str, int]


class BudgetError(ValueError):
    """The figures do not add up; the message shows the table."""


def load(path: Path, *, executors: int = 1) -> Budget:
    """Read and check the budget.

    Raises BudgetError with the whole table when the role limits do not add up to the client budget, the budget
    does not fit the server, or the processes' pools could open more than a role's limit.
    """
    raw = tomllib.loads(path.read_text())
    postgres = raw["postgres"]
    roles = {name: RoleBudget(name=name, **figures) for name, figures in postgres["roles"].items()}
    budget = Budget(
        max_connections=postgres["max_connections"],
        client_budget=postgres["client_budget"],
        back_pressure_seconds=postgres["back_pressure_seconds"],
        roles=roles,
        session=postgres["session"],
        redis=raw["redis"],
        slots=raw["slots"],
        runs=raw["runs"],
        stream=raw["stream"],
        relay=raw["relay"],
        limits=raw["limits"],
    )
    total = sum(role.limit for role in roles.values())
    over = [r.name for r in roles.values() if r.pool_max(executors=executors) * (r.processes or executors) > r.limit]
    if total != budget.client_budget or budget.client_budget >= budget.max_connections or over:
        raise BudgetError(
            f"{path}: the connection budget does not hold"
            f" (sum {total}, budget {budget.client_budget}, server {budget.max_connections},"
            f" over their share: {', '.join(over) or 'none'})\n{table(budget, executors=executors)}"
        )
    return budget


def table(budget: Budget, *, executors: int = 1) -> str:
    """Return the roles as lines of text: limit, processes, pool maximum."""
    lines = [f"{'role':<12} {'limit':>5} {'processes':>9} {'pool max':>8}"]
    lines += [
        f"{r.name:<12} {r.limit:>5} {r.processes or executors:>9} {r.pool_max(executors=executors):>8}"
        for r in budget.roles.values()
    ]
    lines.append(f"{'sum':<12} {sum(r.limit for r in budget.roles.values()):>5} of {budget.max_connections}")
    return "\n".join(lines)
