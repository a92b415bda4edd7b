"""What run-worker reads from the environment: one class for the control process, one for its executors."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

from headrace_kit.settings import CommonSettings
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class CheckSettings(BaseSettings):
    """What a test load of the graphs reads."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_", frozen=True, extra="ignore", hide_input_in_errors=True)

    langgraph_json: str = ""
    """Paths of the user's langgraph.json files, separated as in PATH; empty when there are none."""

    def graph_files(self) -> list[Path]:
        """Return the user's langgraph.json files, in the order given."""
        return [Path(part) for part in self.langgraph_json.split(os.pathsep) if part]


class _Both(CommonSettings, CheckSettings):
    """What control and executors read."""

    redis_url: SecretStr
    """Redis of the projection, `redis://…` or `unix://…`."""


class ControlSettings(_Both):
    """The control process: gRPC, scheduling, the life of executors."""

    control_dsn: SecretStr
    """PostgreSQL, role control."""
    graph_read_dsn: SecretStr
    """PostgreSQL, role graph_read: reads checkpoints."""
    executor_dsn: SecretStr
    """PostgreSQL, role executor: handed on to executors, never used here."""
    graph_dsn: SecretStr
    """PostgreSQL, role graph: handed on to executors, never used here."""
    run_dir: Path
    """Folder of the lock that keeps two controls of one deployment from running at once."""


class ExecutorSettings(_Both):
    """An executor process: claims runs and executes graphs. It never sees control's role or control's token."""

    executor_dsn: SecretStr
    """PostgreSQL, role executor."""
    graph_dsn: SecretStr
    """PostgreSQL, role graph: the checkpoint saver."""
    control_fd: int = Field(ge=0)
    """Read end of a pipe whose write end control holds; end of file means that control is gone."""
    control_id: UUID
    """The control process that started this executor."""
    executor_id: UUID
    """Key of this executor's row in `executors`; minted by control."""
    slots: int = Field(ge=1)
    """Runs that this executor may hold at once."""
