"""The whole product in a folder of its own, through the same code as `make up`. For end-to-end tests.

Its methods block: from a coroutine call `await asyncio.to_thread(stack.up)`, or use `async with started(...)`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from headrace_deploy import probes
from headrace_deploy import stack as deployment
from headrace_deploy.state import State, require_state

_OWN = (
    "HEADRACE_LANGGRAPH_JSON",
    "HEADRACE_MODEL_API_KEY",
    "HEADRACE_MODEL_BASE_URL",
    "HEADRACE_MODEL_NAME",
    "HEADRACE_PORT",
    "HEADRACE_POSTGRES_URL",
    "HEADRACE_REDIS_URL",
    "HEADRACE_RUN_DIR",
)
READY_SECONDS = 150.0
"""Several times `make up`'s bound: other tests may have the machine's cores."""


class Stack:
    """One deployment; `extra_env` adds to the environment of its services, as HEADRACE_LANGGRAPH_JSON."""

    def __init__(self, run_dir: Path, *, extra_env: Mapping[str, str] | None = None) -> None:
        self.run_dir = run_dir
        self.said: list[str] = []
        # A developer's own settings must not decide what a test sees.
        inherited = {name: value for name, value in os.environ.items() if name not in _OWN}
        self._stack = deployment.Stack(
            run_dir,
            environ=inherited | dict(extra_env or {}),
            durable=False,
            ready_seconds=READY_SECONDS,
            say=self.said.append,
        )

    def configured(self, **environ: str) -> Stack:
        """Return the same deployment as a user with other variables sees it."""
        return Stack(self.run_dir, extra_env=environ)

    def up(self) -> State:
        return self._stack.up()

    def down(self) -> bool:
        return self._stack.down()

    @property
    def state(self) -> State:
        """What `.run/state.json` says now."""
        return require_state(self.run_dir)

    @property
    def base_url(self) -> str:
        return self.state.base_url

    @property
    def api_key(self) -> str:
        return self.state.api_key

    @property
    def model_url(self) -> str:
        """Base URL of the scripted model provider, ending in /v1."""
        return self.state.model_url

    @property
    def redis_url(self) -> str:
        redis = self.state.redis
        assert redis is not None
        return redis.url

    def dsn(self, role: str) -> str:
        """The address for a role of the budget, or for `migrate`, the owner."""
        return self.state.dsns[role]

    def address(self, service: str) -> str:
        """host:port of a service."""
        return self.state.services[service].address

    def service_token(self, caller: str = "cli") -> str:
        """The service token of a caller, for gRPC."""
        return self.state.tokens[caller]

    def process(self, service: str) -> psutil.Process | None:
        """The live process of a service."""
        reference = self.state.services[service].process
        return reference.find() if reference else None

    def pids(self) -> dict[str, int]:
        """The process ids of the live services by name."""
        found = {name: self.process(name) for name in self.state.services}
        return {name: process.pid for name, process in found.items() if process}

    def executors(self) -> list[psutil.Process]:
        """The live executor processes: children of run-worker."""
        control = self.process("run-worker")
        return control.children() if control else []

    def processes(self) -> list[psutil.Process]:
        """Every live process of this deployment except the servers: services, executors, what these started."""
        return probes.stack_processes(self.run_dir)

    def kill(self, service: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a service; returns the pid that got it."""
        process = self.process(service)
        assert process is not None, f"{service} does not run"
        process.send_signal(number)
        return int(process.pid)

    def log(self, service: str) -> str:
        """The whole log of a service."""
        return (self.run_dir / "logs" / f"{service}.log").read_text(errors="replace")


@asynccontextmanager
async def started(run_dir: Path, *, extra_env: Mapping[str, str] | None = None) -> AsyncIterator[Stack]:
    """Bring a stack up, and down again whatever happens in between."""
    stack = Stack(run_dir, extra_env=extra_env)
    await asyncio.to_thread(stack.up)
    try:
        yield stack
    finally:
        await asyncio.to_thread(stack.down)
