"""`.run/state.json`: what one deployment on this machine consists of, for `down`, `status`, the CLI and tests.

Written atomically with mode 0600, because it holds the keys. `up` writes it until the supervisor runs, then only the
supervisor does, then `down`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel, Field, ValidationError

from headrace_deploy.processes import is_alive, replace_private
from headrace_deploy.roles import repository_root

FILE_NAME = "state.json"

ServiceStatus = Literal["starting", "running", "backing_off", "failed", "stopped"]


class StateError(RuntimeError):
    """The state file is absent or unreadable; the message says the next step."""


class ProcessRef(BaseModel):
    """A process by number and start time, so that a number used again is never mistaken for it."""

    pid: int
    created: float
    """Seconds since the epoch, as the kernel counts them."""

    @classmethod
    def of(cls, pid: int) -> ProcessRef | None:
        """Return the reference of a live process, None when it is gone already."""
        try:
            return cls(pid=pid, created=psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    def find(self) -> psutil.Process | None:
        """Return the very process if it is alive."""
        try:
            process = psutil.Process(self.pid)
            return process if process.create_time() == self.created and is_alive(process) else None
        except psutil.NoSuchProcess:
            return None


class ServerState(BaseModel):
    """PostgreSQL or Redis: one that we started (`managed`), or the user's by URL."""

    managed: bool
    url: str
    """Address with password: of PostgreSQL the administrator's, of Redis the only one."""
    port: int = 0
    password: str = ""
    version: str = ""
    source: str = ""
    product: str = ""
    """PostgreSQL, Redis or Valkey."""
    speaks: str = ""
    """Version of Redis that a Valkey answers as."""
    process: ProcessRef | None = None

    @property
    def label(self) -> str:
        """What it is, for people: `Valkey 9.1.2, speaks Redis 7.2.4`."""
        return f"{self.product} {self.version}{f', speaks Redis {self.speaks}' if self.speaks else ''}"


class ServiceState(BaseModel):
    """One supervised service."""

    address: str
    """host:port that it serves on."""
    status: ServiceStatus = "stopped"
    process: ProcessRef | None = None
    restarts: int = 0
    message: str = ""
    """Why it failed or waits."""


class State(BaseModel):
    """The whole file."""

    version: int = 1
    deployment: str = "headrace"
    base_url: str = ""
    """Of the HTTP API, as http://127.0.0.1:8080."""
    api_key: str = ""
    uid: str = "local"
    """Whose key it is."""
    model_url: str = ""
    """Base URL of the model provider that runs use."""
    executors: int = 1
    chosen: dict[str, str] | None = None
    """The variables that it was started with, as `chosen.remember` gives them; None before the first start."""
    postgres: ServerState | None = None
    redis: ServerState | None = None
    kept: dict[str, ServerState] = Field(default_factory=dict)
    """Our own `postgres` and `redis` while the user's are used: their passwords open the data that is still there."""
    passwords: dict[str, str] = Field(default_factory=dict)
    """By PostgreSQL role of the budget, and the owner's (`migrate`)."""
    dsns: dict[str, str] = Field(default_factory=dict)
    """By the same names."""
    tokens: dict[str, str] = Field(default_factory=dict)
    """Service tokens by the name of the calling service; `cli` is for people and tests."""
    supervisor: ProcessRef | None = None
    stopping: bool = False
    """The supervisor was told to end; meaningless once it has."""
    services: dict[str, ServiceState] = Field(default_factory=dict)

    def save(self, run_dir: Path) -> None:
        """Replace the file in one step."""
        replace_private(run_dir / FILE_NAME, self.model_dump_json(indent=1))


def default_run_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return HEADRACE_RUN_DIR, else `.run` of the checkout."""
    return Path(environ.get("HEADRACE_RUN_DIR") or repository_root() / ".run").absolute()


def load_state(run_dir: Path) -> State | None:
    """Return the state, None when there is none yet.

    Raises StateError when the file is of another kind.
    """
    path = run_dir / FILE_NAME
    try:
        return State.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise StateError(f"{path} is not a state of this version ({error.error_count()} mistakes); remove it") from None


def require_state(run_dir: Path) -> State:
    """Return the state.

    Raises StateError when there is none.
    """
    state = load_state(run_dir)
    if state is None:
        raise StateError(f"nothing was started here ({run_dir}); run `make up`")
    return state
