"""Owned tasks: they end with `stop`, and one that ends before it is a defect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from headrace_kit import lifecycle
from headrace_kit.budget import BudgetError
from headrace_kit.lifecycle import run_tasks
from headrace_kit.settings import SettingsError


async def test_tasks_that_watch_stop_end_with_it() -> None:
    """1. Two tasks return as soon as `stop` is set.  2. It is set.  3. That is no early end: nothing is raised."""
    stop = asyncio.Event()

    async def watch() -> None:
        await stop.wait()

    async def set_stop() -> None:
        stop.set()
        await asyncio.Event().wait()

    await asyncio.wait_for(run_tasks(stop, {"one": watch(), "two": watch(), "setter": set_stop()}), 5.0)


async def test_a_task_that_ends_early_stops_all() -> None:
    """1. One of two tasks returns by itself.  2. `stop` is set, the other is cancelled, and the defect is raised."""
    stop = asyncio.Event()
    cancelled = asyncio.Event()

    async def leave() -> None:
        return

    async def stay() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(RuntimeError, match="task leave ended early"):
        await asyncio.wait_for(run_tasks(stop, {"leave": leave(), "stay": stay()}), 5.0)
    assert stop.is_set()
    assert cancelled.is_set()


async def test_a_tasks_error_is_raised() -> None:
    """1. A task fails.  2. Its error, not a sentence about it, reaches the owner."""

    async def fail() -> None:
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError, match="lost"):
        await asyncio.wait_for(run_tasks(asyncio.Event(), {"fail": fail()}), 5.0)


async def test_an_error_while_stopping_is_raised_too() -> None:
    """1. `stop` is set and a task fails while it is cancelled.  2. The error is not lost."""
    stop = asyncio.Event()

    async def fail_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("while stopping")

    asyncio.get_running_loop().call_soon(stop.set)
    with pytest.raises(ConnectionError, match="while stopping"):
        await asyncio.wait_for(run_tasks(stop, {"fail": fail_at_the_end()}), 5.0)


@pytest.mark.parametrize("error", [SettingsError("settings are wrong"), BudgetError("the budget does not hold")])
def test_what_an_operator_can_repair_is_told_without_a_traceback(error: Exception) -> None:
    """1. A service cannot start with what it was given.  2. The process ends with that message and exit code 1."""

    def service() -> Callable[[asyncio.Event], Awaitable[None]]:
        async def main(_stop: asyncio.Event) -> None:
            raise error

        return main

    with pytest.raises(SystemExit) as caught:
        lifecycle.run(service())
    assert caught.value.code == str(error)
