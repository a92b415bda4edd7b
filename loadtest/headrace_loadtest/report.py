"""A level's figures: percentiles, costs per token, the table for a terminal and the JSON for a machine."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace_client.types import LATENCIES
from rich.console import Console
from rich.table import Table

from headrace_loadtest.sampling import Usage
from headrace_loadtest.scenarios import Scenario
from headrace_loadtest.users import Outcome

PERCENTILES = (50, 95, 99)
CLIENT_FIGURES = ("accepted_s", "ready_s", "first_token_s", "overall_s")


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the ladder, measured."""

    users: int
    scenario: Scenario
    outcomes: Sequence[Outcome]
    usage: Usage
    idle: Usage
    model: Mapping[str, Any]
    """What the scripted provider counted, empty for another provider."""
    recovery: Mapping[str, Any]

    @property
    def successes(self) -> list[Outcome]:
        """The strict ones; figures are theirs only."""
        return [outcome for outcome in self.outcomes if outcome.failure is None]

    @property
    def tokens(self) -> int:
        """Tokens of all strict successes."""
        return len(self.successes) * self.scenario.tokens


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return the nearest-rank percentile, None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Return p50, p95 and p99 of the values that there are."""
    there = [value for value in values if value is not None]
    figures = {f"p{percent}": percentile(there, percent) for percent in PERCENTILES}
    return {name: None if value is None else round(value, 4) for name, value in figures.items()}


def costs(level: Level) -> dict[str, dict[str, float]]:
    """Return, by process, CPU seconds per 1,000 tokens, in all and without what it costs idle."""
    if not level.tokens:
        return {}
    found = {}
    for name, cpu in level.usage.cpu_s.items():
        idle_rate = level.idle.cpu_s.get(name, 0.0) / level.idle.seconds if level.idle.seconds else 0.0
        net = max(0.0, cpu - idle_rate * level.usage.seconds)
        per_thousand = 1000 / level.tokens
        found[name] = {"all": round(cpu * per_thousand, 4), "net": round(net * per_thousand, 4)}
    return found


def executor_microseconds(level: Level) -> float | None:
    """Return the executors' own CPU per token, without their idle cost."""
    cost = costs(level).get("executors")
    return None if cost is None else round(cost["net"] * 1000, 1)


def marginal_microseconds(few: Level, many: Level) -> float | None:
    """Return what one more token costs the executors: the slope between two levels of different length.

    A run's fixed cost (claim, checkpoints, end), which is in `executor_microseconds`, falls out.
    """
    more = many.scenario.tokens - few.scenario.tokens
    costs_per_run = []
    for level in (few, many):
        per_token = executor_microseconds(level)
        if per_token is None or not more:
            return None
        costs_per_run.append(per_token * level.scenario.tokens)
    return round((costs_per_run[1] - costs_per_run[0]) / more, 1)


def marginals(levels: Sequence[Level]) -> list[dict[str, Any]]:
    """Return the slope of each pair of neighbours in length that differ in nothing else."""
    found = []
    for users in dict.fromkeys(level.users for level in levels):
        same = sorted((level for level in levels if level.users == users), key=lambda level: level.scenario.tokens)
        for few, many in itertools.pairwise(same):
            slope = marginal_microseconds(few, many)
            if slope is not None:
                tokens = [few.scenario.tokens, many.scenario.tokens]
                found.append({"users": users, "tokens": tokens, "executor_us_per_token": slope})
    return found


def show_marginals(console: Console, levels: Sequence[Level]) -> None:
    """Print the slopes."""
    for slope in marginals(levels):
        few, many = slope["tokens"]
        console.print(
            f"\nlevel {slope['users']}: executor {slope['executor_us_per_token']:.1f} µs for each further token"
            f" (slope from {few} to {many} tokens)"
        )


def as_json(level: Level) -> dict[str, Any]:
    """Return a level as JSON values; no text of a model is in it."""
    good = level.successes
    return {
        "users": level.users,
        "scenario": level.scenario.name,
        "tokens_per_run": level.scenario.tokens,
        "runs": len(level.outcomes),
        "successes": len(good),
        "failures": dict(Counter(outcome.failure for outcome in level.outcomes if outcome.failure)),
        "failure_details": [f"{o.run_id} {o.failure}: {o.detail}" for o in level.outcomes if o.failure][:20],
        "model_first_s": level.scenario.first_s,
        "model_ideal_s": level.scenario.ideal_s,
        "client": {name: spread([getattr(outcome, name) for outcome in good]) for name in CLIENT_FIGURES},
        "overhead": {
            "first_token_s": spread([_minus(o.first_token_s, level.scenario.first_s) for o in good]),
            "overall_s": spread([_minus(o.overall_s, level.scenario.ideal_s) for o in good]),
        },
        "server_ms": {name: spread([outcome.latencies.get(name) for outcome in good]) for name in LATENCIES},
        "events_per_run": spread([outcome.events for outcome in good]),
        "attempts_over_1": sum(outcome.attempts > 1 for outcome in level.outcomes),
        "tokens": level.tokens,
        "cpu_s_per_1000_tokens": costs(level),
        "executor_us_per_token": executor_microseconds(level),
        "usage": asdict(level.usage),
        "idle": asdict(level.idle),
        "model": dict(level.model),
        "recovery": dict(level.recovery),
    }


def show(console: Console, level: Level) -> None:
    """Print a level."""
    figures = as_json(level)
    good, runs = figures["successes"], figures["runs"]
    style = "green" if good == runs else "red"
    console.print(
        f"\n[bold]level {level.users}[/bold]  scenario {level.scenario.name}, model {level.scenario.first_s:g} s to the"
        f" first token, {level.scenario.ideal_s:g} s in all   [{style}]{good}/{runs} strict successes[/{style}]"
    )
    for failure, count in figures["failures"].items():
        console.print(f"  [red]{count} × {failure}[/red]", highlight=False)
    for detail in figures["failure_details"][:3]:
        console.print(f"    {detail[:300]}", style="dim", markup=False)
    console.print(_latencies(figures))
    console.print(_processes(level))
    usage = level.usage
    roles = ", ".join(f"{role} {count}" for role, count in sorted(usage.sessions_peak.items()))
    console.print(
        f"PostgreSQL sessions {usage.sessions_total_peak} (active {usage.sessions_active_peak};"
        f" {roles or 'not sampled'})   Redis clients {usage.redis_clients_peak} (Pub/Sub {usage.redis_pubsub_peak})"
    )
    if figures["executor_us_per_token"] is not None:
        console.print(
            f"executor {figures['executor_us_per_token']:.1f} µs per token (total / {level.scenario.tokens})"
            ", idle cost taken off"
        )
    told = {**level.recovery, **{f"not sampled: {name}": why for name, why in usage.missing.items()}}
    if level.model:
        told["latest token of the model"] = f"{level.model['late_ms_max']:.1f} ms behind its schedule"
    for name, value in told.items():
        console.print(f"  [dim]{name}: {value}[/dim]")


def _latencies(figures: Mapping[str, Any]) -> Table:
    table = Table("figure", box=None, pad_edge=False)
    for percent in PERCENTILES:
        table.add_column(f"p{percent}", justify="right")
    rows = {f"client {name.removesuffix('_s').replace('_', ' ')} s": v for name, v in figures["client"].items()}
    rows |= {f"overhead {name.removesuffix('_s').replace('_', ' ')} s": v for name, v in figures["overhead"].items()}
    rows |= {f"server {name.removesuffix('_ms')} ms": v for name, v in figures["server_ms"].items()}
    for name, values in rows.items():
        digits = 0 if name.endswith("ms") else 3
        table.add_row(name, *("–" if value is None else f"{value:.{digits}f}" for value in values.values()))
    return table


def _processes(level: Level) -> Table:
    table = Table("process", box=None, pad_edge=False)
    for heading in ("CPU s", "peak %", "CPU s / 1,000 tokens", "without idle", "RSS MiB"):
        table.add_column(heading, justify="right")
    cost = costs(level)
    for name, cpu in sorted(level.usage.cpu_s.items(), key=lambda item: -item[1]):
        per = cost.get(name)
        rss = level.usage.rss_peak_bytes.get(name)
        table.add_row(
            name,
            f"{cpu:.2f}",
            f"{level.usage.cpu_peak_percent.get(name, 0):.0f}",
            f"{per['all']:.3f}" if per else "–",
            f"{per['net']:.3f}" if per else "–",
            f"{rss / 2**20:.0f}" if rss else "–",
        )
    return table


def _minus(value: float | None, ideal: float) -> float | None:
    return None if value is None else value - ideal
