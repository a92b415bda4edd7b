"""How an executor process ends: in order, but never later than its deadline, and with nothing of control's left open.

Invariant: neither a synchronous node, a thread or a child of the author's nor an exporter keeps the process, and no
child keeps control's lock: a next control waits for that lock.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

import structlog

EXIT_SECONDS: Final = 10.0
"""From the end of control, or of all work, to the end of the process: a hand-back (8 s) and the last spans."""
_FIRST_FD: Final = 3
"""Behind standard input, output and error."""

log = structlog.get_logger("headrace.executor")


def keep_from_children() -> None:
    """Let no child have what control passed on, the end of its pipe and its lock, nor our signals. Call it first."""
    # Python opens everything non-inheritable: whatever is inheritable was passed.
    passed = [fd for fd in _open_fds() if fd >= _FIRST_FD and _inheritable(fd)]
    for fd in passed:
        os.set_inheritable(fd, False)

    def close() -> None:
        # A fork has the loop's handlers and the socket that wakes it: what ends the child would end this executor.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for fd in passed:
            with suppress(OSError):
                os.close(fd)

    os.register_at_fork(after_in_child=close)


def _open_fds() -> list[int]:
    return [int(name) for name in os.listdir("/dev/fd")]


def _inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False  # the listing's own


class Deadline:
    """Ends the process once a bound is over, whatever its loop and threads do."""

    def __init__(self, seconds: float = EXIT_SECONDS) -> None:
        self._seconds = seconds
        self._begun = threading.Event()

    def watch(self, control_fd: int) -> None:
        """Begin when the pipe that control holds is closed; the event loop may be busy with a node just then."""

        def wait() -> None:
            poll = select.poll()
            poll.register(control_fd, 0)  # a hang-up is always reported
            poll.poll()
            self.begin()

        threading.Thread(target=wait, name="control pipe", daemon=True).start()

    def begin(self) -> None:
        """Begin, if it has not begun."""
        if not self._begun.is_set():
            self._begun.set()
            threading.Thread(target=self._end, name="deadline", daemon=True).start()

    def _end(self) -> None:
        time.sleep(self._seconds)
        # No logging: whoever hangs may hold its lock.
        os._exit(0)


@contextmanager
def control_pipe(fd: int, on_gone: Callable[[], None]) -> Iterator[None]:
    """Call `on_gone` once when the pipe that control holds is closed."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)

    def readable() -> None:
        try:
            closed = os.read(fd, 4096) == b""
        except BlockingIOError:
            return
        if closed:
            loop.remove_reader(fd)
            on_gone()

    loop.add_reader(fd, readable)
    try:
        yield
    finally:
        loop.remove_reader(fd)


def run_to_exit(work: Callable[[], None], *, deadline: Deadline, flush: Callable[[], None]) -> NoReturn:
    """Call `work`, end the author's child processes, call `flush` and end the process without waiting for anybody."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as error:
        # Settings that cannot work: their message is all there is to say.
        log.error("executor not started", reason=str(error.code))
    except BaseException as error:  # the process's edge
        log.error("executor ends by a defect", exc_info=error)
    deadline.begin()
    try:
        for child in multiprocessing.active_children():
            # A fork of this process may have its handlers: only a kill is sure.
            child.kill()
        flush()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
