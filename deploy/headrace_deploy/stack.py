"""A whole deployment on this machine: `up` and `down`, for the command line and for tests.

Invariants: `up` on a live stack changes nothing, on one that is stopping it starts anew; `down` ends what this run
folder started and nothing else, also when the supervisor was killed; data, keys, passwords and ports stay from one
`up` to the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import asyncpg
import psutil

from headrace_deploy import chosen, first_key, probes
from headrace_deploy.prepare import prepare
from headrace_deploy.processes import end_process, is_alive, tail
from headrace_deploy.servers import stop_postgres, stop_redis
from headrace_deploy.services import STOP_STAGE_SECONDS
from headrace_deploy.state import State, load_state

READY_SECONDS = 60.0
"""How long `up` waits for all services."""
SUPERVISOR_STOP_SECONDS = sum(STOP_STAGE_SECONDS) + 10.0
"""Its stages one after the other, and room."""
LEFTOVER_TERM_SECONDS = 20.0
LEFTOVER_KILL_SECONDS = 5.0
LOCK_SECONDS = 120.0
"""How long a second `up` or `down` waits for the first."""
EARLY_DEATHS = 3
"""A service that died this often before it was ready makes `up` give up at once."""


class StackError(RuntimeError):
    """The deployment did not start; the message has the failing service's last lines."""


class _SupervisorEndsError(StackError):
    """The supervisor that was waited for stops or has ended."""


class Stack:
    """One deployment in one run folder."""

    def __init__(
        self,
        run_dir: Path,
        *,
        environ: Mapping[str, str] | None = None,
        durable: bool = True,
        ready_seconds: float = READY_SECONDS,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Name a deployment; nothing is started.

        `environ` replaces the process's environment, `durable` False trades safety against a crash of the machine
        for speed, `ready_seconds` bounds the wait for all services, `say` receives a line for each step.
        """
        self.run_dir = run_dir.absolute()
        self._environ = dict(os.environ if environ is None else environ)
        self._durable = durable
        self._ready_seconds = ready_seconds
        self._say = say
        self._child: subprocess.Popen[bytes] | None = None
        self.key_revoked = False

    def up(self) -> State:
        """Start what does not run yet and wait until all are ready. Blocking; must not run inside an event loop.

        `key_revoked` tells afterwards whether a deployment that ran already has a first key that opens nothing.
        Raises SettingsError or StackError before anything is started, and StackError, ServersError, BudgetError,
        MigrationError or GraphsError; what was started is stopped again then.
        """
        chosen.check(self._environ)
        self.key_revoked = False
        self._make_folders()
        with self._locked():
            state = load_state(self.run_dir) or State()
            if state.supervisor and (supervisor := state.supervisor.find()):
                # It may be told to stop at any moment, also between our look at it and its services being ready.
                with contextlib.suppress(_SupervisorEndsError):
                    return self._already_up(state)
                self._wait_stopped(supervisor)
                state = load_state(self.run_dir) or state
            self._reap()
            self._end_leftovers(state)
            state.supervisor, state.stopping = None, False
            try:
                prepare(state, run_dir=self.run_dir, environ=self._environ, durable=self._durable, say=self._say)
                self._start_supervisor()
                return self._wait_ready(state)
            except BaseException:
                self._stop()
                raise

    def down(self) -> bool:
        """Stop everything that `up` started; returns whether anything ran."""
        if not self.run_dir.is_dir():
            return False
        with self._locked():
            return self._stop()

    def _already_up(self, state: State) -> State:
        if state.stopping:
            raise _SupervisorEndsError("it is stopping")
        if others := chosen.changed(state, self._environ):
            raise StackError(f"already up with other settings: {', '.join(others)}; run `make down` first")
        self._say("already up")
        state = self._wait_ready(state)
        # Where the database does not tell, the gateway's readiness has told more than we could.
        with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError):
            self.key_revoked = first_key.is_revoked(state)
        if self.key_revoked:
            self._say("the first API key was revoked; `make down && make up` makes a new one")
        return state

    def _make_folders(self) -> None:
        try:
            # Passable, not readable: PostgreSQL may have to run as `nobody` below it.
            self.run_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
            for name in ("data", "logs", "redis"):
                (self.run_dir / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StackError(
                f"cannot make {self.run_dir} ({error.strerror}); set HEADRACE_RUN_DIR to a folder that you may write"
            ) from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.run_dir / "up.lock").open("w") as lock:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StackError(
                            f"another up or down has been at work in {self.run_dir} for too long"
                        ) from None
                    time.sleep(0.1)
            yield

    def _start_supervisor(self) -> None:
        with (self.run_dir / "logs" / "supervisor.log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "headrace_deploy.supervisor", str(self.run_dir)],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_ready(self, state: State) -> State:
        began = time.monotonic()
        told: set[str] = set()
        before = {name: service.restarts for name, service in state.services.items()}
        while True:
            current = load_state(self.run_dir) or state
            answers = probes.ready(current, but=told)
            for name, answer in answers.items():
                if answer == "ready" and name not in told:
                    told.add(name)
                    self._say(f"{name} ready on {current.services[name].address}  {time.monotonic() - began:.1f} s")
            if self._supervisor_ends(current):
                raise _SupervisorEndsError(f"the supervisor ended\n{self.log_tail('supervisor')}")
            if len(told) == len(current.services) and current.supervisor:
                return current
            for name, service in current.services.items():
                if service.status == "failed" or (name not in told and service.restarts >= before[name] + EARLY_DEATHS):
                    raise StackError(f"{name} does not start\n{self.log_tail(name)}")
            if time.monotonic() - began > self._ready_seconds:
                late = {name: answer for name, answer in answers.items() if answer != "ready"}
                tails = "\n".join(f"--- {name} ({answer})\n{self.log_tail(name)}" for name, answer in late.items())
                raise StackError(f"not ready after {self._ready_seconds:.0f} s: {', '.join(late)}\n{tails}")
            time.sleep(0.1)

    def _supervisor_ends(self, current: State) -> bool:
        if current.supervisor and current.supervisor.find():
            return current.stopping
        # One that we started writes itself into the state only after a while; until then its process tells.
        return self._child is None or self._child.poll() is not None

    def _wait_stopped(self, supervisor: psutil.Process) -> None:
        # Without a second SIGTERM, which would mean "now" and cut off the runs that drain.
        if is_alive(supervisor):
            self._say(
                f"it is still stopping, as runs drain; waiting at most {SUPERVISOR_STOP_SECONDS:.0f} s for its end"
            )
        deadline = time.monotonic() + SUPERVISOR_STOP_SECONDS
        while is_alive(supervisor):
            if time.monotonic() > deadline:
                end_process(supervisor, signal.SIGKILL, LEFTOVER_KILL_SECONDS)
                break
            time.sleep(0.05)

    def log_tail(self, name: str, lines: int = 20) -> str:
        """Return the last lines of a service's log."""
        text = tail(self.run_dir / "logs" / f"{name}.log", lines)
        return "\n".join(f"  {line}" for line in text.splitlines()) or "  (its log is empty)"

    def _stop(self) -> bool:
        state = load_state(self.run_dir)
        if state is None:
            return False
        ran = False
        if state.supervisor and (process := state.supervisor.find()):
            if state.stopping:
                self._wait_stopped(process)
            else:
                self._say("stopping the services")
                end_process(process, signal.SIGTERM, SUPERVISOR_STOP_SECONDS)
            ran = True
        ran = self._reap() or ran
        state = load_state(self.run_dir) or state
        ran = self._end_leftovers(state) or ran
        ran = stop_redis(self.run_dir / "redis") or ran
        ran = stop_postgres(self.run_dir / "postgres") or ran
        state.supervisor, state.stopping = None, False
        for service in state.services.values():
            service.status, service.process = "stopped", None
        for server in (state.postgres, state.redis):
            if server:
                server.process = None
        state.save(self.run_dir)
        return ran

    def _reap(self) -> bool:
        # A supervisor of this object's own, which may have been killed or not yet be in the state. Did it run?
        child, self._child = self._child, None
        if child is None:
            return False
        ran = child.poll() is None
        child.terminate()
        child.wait(SUPERVISOR_STOP_SECONDS)
        return ran

    def _end_leftovers(self, state: State) -> bool:
        # What a killed supervisor left: the recorded services, and whatever carries the deployment's mark.
        recorded = [service.process.find() for service in state.services.values() if service.process]
        alive = list({p.pid: p for p in (*recorded, *probes.stack_processes(self.run_dir)) if p}.values())
        found = bool(alive)
        for number, seconds in ((signal.SIGTERM, LEFTOVER_TERM_SECONDS), (signal.SIGKILL, LEFTOVER_KILL_SECONDS)):
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and (alive := [process for process in alive if is_alive(process)]):
                time.sleep(0.05)
        return found
