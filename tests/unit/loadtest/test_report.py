"""A level's figures: percentiles, overhead, costs per token."""

from __future__ import annotations

import io
import json

import pytest
from headrace_client.types import LATENCIES
from headrace_loadtest import report
from headrace_loadtest.report import Level
from headrace_loadtest.sampling import Usage
from headrace_loadtest.scenarios import text, tools
from headrace_loadtest.users import Outcome
from rich.console import Console


def success(overall_s: float) -> Outcome:
    return Outcome(
        run_id="r",
        accepted_s=0.01,
        ready_s=0.05,
        first_token_s=0.4,
        overall_s=overall_s,
        events=90,
        attempts=1,
        latencies=dict.fromkeys(LATENCIES, 5),
    )


def level(*outcomes: Outcome) -> Level:
    usage = Usage(seconds=5.0, cpu_s={"executors": 0.3, "event-relay": 0.1})
    idle = Usage(seconds=10.0, cpu_s={"executors": 0.1, "event-relay": 0.3})
    return Level(len(outcomes), text(), outcomes, usage, idle, {"late_ms_max": 1.0}, {"recovered after": "0.1 s"})


def test_percentiles_are_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [report.percentile(values, p) for p in (50, 95, 99)] == [50, 95, 99]
    assert report.percentile([7.0], 99) == 7.0
    assert report.percentile([], 50) is None


def test_costs_per_token_with_and_without_idle() -> None:
    """
    1. two runs of 200 tokens took 5 s and 0.3 s of executor CPU, of which idle costs 0.01 s a second
    2. all: 0.75 s per 1,000 tokens; net: (0.3 - 0.05) / 400 = 625 µs per token
    3. a process that costs less than idle costs nothing net
    """
    measured = level(success(4.4), success(4.5))
    assert report.costs(measured)["executors"] == {"all": 0.75, "net": 0.625}
    assert report.executor_microseconds(measured) == 625.0
    assert report.costs(measured)["event-relay"]["net"] == 0.0


def test_failures_are_counted_by_class_and_are_not_in_the_figures() -> None:
    """
    1. one run of three was a success
    2. the figures are its own, the failures are counted by their class, JSON holds it all
    """
    failed = Outcome(failure="run failed", detail="graph_error x", run_id="r2")
    figures = report.as_json(level(success(4.5), failed, failed))
    assert (figures["successes"], figures["runs"], figures["failures"]) == (1, 3, {"run failed": 2})
    assert figures["overhead"]["overall_s"]["p95"] == pytest.approx(0.2)
    assert figures["tokens"] == 200
    json.dumps(figures)


def test_a_level_without_success_can_be_shown() -> None:
    out = io.StringIO()
    report.show(Console(file=out, width=200), level(Outcome(failure="timed out")))
    assert "0/1 strict successes" in out.getvalue()


def test_ideal_times_of_the_scenarios() -> None:
    assert (text().first_s, text().tokens) == (0.3, 200)
    assert text().ideal_s == pytest.approx(4.3)
    # four turns wait 0.3 s each, and 55 tokens come at 50 a second
    assert tools().ideal_s == pytest.approx(4 * 0.3 + 55 / 50)
    assert tools().tokens == 55


def test_cost_of_one_more_token_is_the_slope_between_two_lengths() -> None:
    """
    1. runs of 200 tokens cost the executors 250 ms net in all, runs of 1,000 tokens 290 ms, two of each
    2. 125 ms and 145 ms a run: 800 more tokens cost 20 ms, 25 µs each; the fixed cost is not in it
    3. a level without its pair gives no slope
    """
    few = level(success(4.4), success(4.5))
    usage = Usage(seconds=5.0, cpu_s={"executors": 0.34})
    many = Level(2, text(1000), few.outcomes, usage, few.idle, {}, {})
    expected = {"users": 2, "tokens": [200, 1000], "executor_us_per_token": 25.0}
    assert report.marginals([many, few, level(success(4.4))]) == [expected]
    out = io.StringIO()
    report.show_marginals(Console(file=out, width=200), [few, many])
    assert "25.0 µs for each further token" in out.getvalue()
