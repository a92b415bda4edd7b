"""The synchronous half of the chat model: a loop of its own for each call, in another thread where one runs already."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar, cast

from headrace_agent.sessions import close_session
from headrace_agent.sink import current_sink

T = TypeVar("T")


@contextmanager
def _runner() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Give a function that runs coroutines, one after the other, in one event loop of their own.

    They see the caller's context without its sink, for a sink belongs to its run's loop and thread.
    """
    context = contextvars.copy_context()
    context.run(current_sink.set, None)
    with ExitStack() as stack:
        runner = asyncio.Runner()
        in_thread: Callable[..., Any] = _here
        if _loop_runs_here():
            # A thread has one running loop; a notebook's cell, for one, is inside of it.
            pool = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="headrace-chat"))
            in_thread = partial(_submitted, pool)
        stack.callback(in_thread, runner.close)
        stack.callback(lambda: in_thread(runner.run, close_session()))
        yield lambda coroutine: in_thread(runner.run, coroutine, context=context)


def _here(call: Callable[..., T], *args: Any, **options: Any) -> T:
    return call(*args, **options)


def _submitted(pool: ThreadPoolExecutor, call: Callable[..., T], *args: Any, **options: Any) -> T:
    return pool.submit(call, *args, **options).result()


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_blocking(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what the coroutine returns; works with and without a running event loop in this thread."""
    with _runner() as run:
        return cast(T, run(call()))


def iterate_blocking(call: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
    """Yield what the asynchronous generator yields; closing this generator closes that one."""
    end = object()

    with _runner() as run:
        items = call()

        async def step() -> T | object:
            return await anext(items, end)

        try:
            while (item := run(step())) is not end:
                yield item
        finally:
            run(items.aclose())
