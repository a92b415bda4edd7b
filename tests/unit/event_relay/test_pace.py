"""The reading interval and its grid."""

from __future__ import annotations

from event_relay.domain.pace import Pace, PaceFigures, next_on_grid
from headrace_kit.budget import Budget
from hypothesis import given
from hypothesis import strategies as st

FIGURES = PaceFigures(base=0.05, hold=2.0, busy_max=1.0, idle_after=120.0, idle_max=4.0, jitter=0.2)
FOREVER = float("inf")


def test_the_budget_has_all_figures(budget: Budget) -> None:
    """1. The budget's table. 2. It makes figures whose longest interval stays under a probe."""
    figures = PaceFigures.of(budget.relay)
    assert figures.idle_max * (1 + figures.jitter) < budget.relay["probe_seconds"]


def test_it_doubles_while_empty_and_an_event_resets_it() -> None:
    """1. Nothing comes: twice the interval each time, up to 1 s. 2. After 120 s up to 4 s. 3. An event: base."""
    pace = Pace(FIGURES, 0.0)
    seen = []
    for _ in range(6):
        pace.saw_nothing(10.0)
        seen.append(pace.interval)
    assert seen == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    pace.saw_nothing(119.9)
    assert pace.interval == 1.0
    for _ in range(3):
        pace.saw_nothing(120.0)
    assert pace.interval == 4.0
    pace.saw_events(130.0)
    assert pace.interval == FIGURES.base
    pace.saw_nothing(240.0)
    pace.saw_nothing(249.0)
    assert pace.interval == 0.2


def test_it_holds_the_base_interval_after_an_event() -> None:
    """1. Nothing comes within the hold: still the base interval. 2. After it: doubling."""
    pace = Pace(FIGURES, 0.0)
    pace.saw_nothing(FIGURES.hold - 0.01)
    assert pace.interval == FIGURES.base
    pace.saw_nothing(FIGURES.hold)
    assert pace.interval == 2 * FIGURES.base


@given(
    now=st.floats(0, 1e6),
    interval=st.sampled_from([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 2.0, 4.0]),
    factor=st.floats(0.8, 1.2),
    probe_in=st.floats(0, 5) | st.just(FOREVER),
)
def test_the_next_read_is_soon_later_and_not_past_the_probe(
    now: float, interval: float, factor: float, probe_in: float
) -> None:
    """1. Any time, interval and jitter. 2. The next read lies within 20 % of the interval and one grid step, at most
    1.2 intervals away, and never past the next probe.
    """
    pace = Pace(FIGURES, now, uniform=lambda _low, _high: factor)
    pace.interval = interval
    due = pace.next_due(now, probe_due=now + probe_in)
    assert due <= now + probe_in
    assert due <= now + interval * 1.2 + 1e-6
    if probe_in == FOREVER:
        assert due >= now + interval * 0.5


@given(st.floats(0, 1e6), st.floats(0, 0.01), st.floats(0.8, 1.2), st.floats(0.8, 1.2))
def test_tails_that_are_read_together_stay_near(now: float, late: float, one: float, other: float) -> None:
    """1. Two tails at the base interval, read at one time, any jitter. 2. Their next reads are at most a step apart."""
    point = next_on_grid(now, FIGURES.step(FIGURES.base))
    paces = [
        Pace(FIGURES, now, uniform=lambda _low, _high: one),
        Pace(FIGURES, now, uniform=lambda _low, _high: other),
    ]
    dues = [pace.next_due(point + late, probe_due=FOREVER) for pace in paces]
    assert max(dues) - min(dues) <= FIGURES.step(FIGURES.base) + 1e-6


@given(st.floats(0, 1e7), st.sampled_from([0.3, 0.5, 1.0, 5.0]))
def test_the_grid_goes_on(now: float, period: float) -> None:
    """1. Any time. 2. The next grid point is later, at most a period away."""
    due = next_on_grid(now, period)
    assert now < due <= now + period + 1e-6
