"""The threads in which synchronous nodes and tools run: the event loop's default executor, one thread a slot.

asyncio's own has five threads on one core, so that the sixth synchronous node would wait for another run's.
Invariant: a node that never returns keeps no process alive; nothing can stop its thread but the end of the process.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

IDLE_SECONDS: Final = 0.2
"""All idle threads end within this when the pool is shut down; they need a switch each."""


class NodeThreads(ThreadPoolExecutor):
    """A pool whose shutdown drops what has not begun and does not wait for what has."""

    def __init__(self, slots: int) -> None:
        super().__init__(max_workers=slots, thread_name_prefix="node")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more. The loop asks for a wait without a bound, which one stuck node would make endless."""
        super().shutdown(wait=False, cancel_futures=True)

    def stuck(self) -> bool:
        """Say whether a thread still works: the interpreter would wait for it at exit, without a bound."""
        self.shutdown()
        deadline = time.monotonic() + IDLE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return any(thread.is_alive() for thread in self._threads)
