"""The threads in which synchronous nodes and tools run: the event loop's default executor, one thread a slot.

asyncio's own has five threads on one core, so that the sixth synchronous node would wait for another run's.
Invariant: a node that never returns holds nobody up; nothing can stop its thread but the end of the process, which does
not wait for it (adapters/process_exit.py).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from run_worker.adapters.graph_tasks import guarded_call

P = ParamSpec("P")
R = TypeVar("R")


class NodeThreads(ThreadPoolExecutor):
    """A pool whose shutdown drops what has not begun and does not wait for what has."""

    def __init__(self, slots: int) -> None:
        super().__init__(max_workers=slots, thread_name_prefix="node")

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call `fn` in a thread; an exit that it raises is its error."""
        return super().submit(guarded_call(fn), *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more. The loop asks for a wait without a bound, which one stuck node would make endless."""
        super().shutdown(wait=False, cancel_futures=True)
