"""What a graph's code may raise: an exit or interrupt in a node is that graph's error, not the end of the process.

Invariant: asyncio hands SystemExit and KeyboardInterrupt of any task to whoever runs the loop, so none may leave a task
or thread of a graph as it is. Each becomes GraphExit where it is raised, so that LangGraph can name the node.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Never, ParamSpec, TypeVar

from headrace_agent.sink import current_sink

P = ParamSpec("P")
R = TypeVar("R")


class GraphExit(Exception):
    """Stands for something that is no Exception; the cause is what was raised."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(*raised.args)
        self.name = type(raised).__name__


def is_exit(error: BaseException) -> bool:
    """Say whether `error` would pass every `except Exception` and is not asyncio's or Python's own way to stop."""
    return not isinstance(error, Exception | asyncio.CancelledError | GeneratorExit)


def as_error(error: BaseException) -> Never:
    """Raise what was raised, an exit as GraphExit."""
    if is_exit(error):
        raise GraphExit(error) from error
    raise error


class _Guarded(Coroutine[Any, Any, Any]):
    """A coroutine whose exits are errors. No coroutine function: one that never began would close nothing."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except (StopIteration, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001  # raised again
            as_error(error)

    def throw(self, *raised: Any) -> Any:
        try:
            return self._inner.throw(*raised)
        except (StopIteration, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001  # raised again
            as_error(error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        # Frame, code and name, for debuggers and the stacks of tasks.
        return getattr(self._inner, name)


def guarded_task(
    loop: asyncio.AbstractEventLoop, coro: Any, *, context: contextvars.Context | None = None
) -> asyncio.Task[Any]:
    """Make a task, as a loop's task factory: of a graph's context, guarded; any other as it is."""
    sink = current_sink.get() if context is None else context.get(current_sink)
    if sink is not None and asyncio.iscoroutine(coro):
        coro = _Guarded(coro)
    return asyncio.Task(coro, loop=loop, context=context)


def guarded_call(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` with its exits as errors, for threads."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  # raised again
            as_error(error)

    return call
