"""Signals, owned tasks and the order of an end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import structlog
import uvloop

from headrace_kit.budget import BudgetError
from headrace_kit.settings import SettingsError

log = structlog.get_logger("headrace.lifecycle")


def run(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `main(stop)` on uvloop; SIGTERM and SIGINT set `stop`, a second one ends the process now.

    Settings or a budget that cannot work end the process with their message and exit code 1, not with a traceback.
    """

    async def entry() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal(number: int) -> None:
            if stop.is_set():
                os._exit(128 + number)
            log.info("stopping", signal=signal.Signals(number).name)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)
        await main(stop)

    try:
        uvloop.run(entry())
    except (SettingsError, BudgetError) as error:
        sys.exit(str(error))


async def run_tasks(stop: asyncio.Event, tasks: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Own `tasks` until `stop` is set, then cancel and await them.

    A task that ends by itself before that is a defect or a lost dependency: it sets `stop`, and its error is raised.
    """
    owned = {asyncio.create_task(work, name=name) for name, work in tasks.items()}
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        done, _ = await asyncio.wait({*owned, stopping}, return_when=asyncio.FIRST_COMPLETED)
        early = set() if stop.is_set() else owned & done  # one that ends because of `stop` does what it should
    finally:
        stop.set()
        stopping.cancel()
        for task in owned:
            task.cancel()
        results = await asyncio.gather(*owned, return_exceptions=True)
    for task in early:
        log.error("task ended early", task=task.get_name())
    errors = [r for r in results if isinstance(r, Exception)]
    if errors:
        raise errors[0]
    if early:
        raise RuntimeError(f"task {early.pop().get_name()} ended early")


async def wait_or_stop(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep, at most until `stop`; return whether it was set."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
