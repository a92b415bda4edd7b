"""Settings from the environment: frozen, typed, and wrong all at once, so that one start shows every mistake."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class CommonSettings(BaseSettings):
    """What every service reads. Each field `x` is the environment variable `HEADRACE_X`."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_", frozen=True, extra="ignore", hide_input_in_errors=True)

    listen: str = "127.0.0.1:0"
    """host:port to serve on; port 0 takes a free one."""
    budget_file: Path
    """Path of budget.toml."""
    tokens_file: Path
    """JSON object: name of a calling service -> sha256 hex of its token."""
    service_token: SecretStr = SecretStr("")
    """The token that this service sends on its own calls."""
    data_dir: Path
    """Folder for traces and other files of this deployment."""
    log_format: str = Field(default="json", pattern="^(json|console)$")
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    executors: int = Field(default=2, ge=1, le=64)
    """Executor processes of the run-worker: the budget divides shares by it, so every service knows it."""
    redis_shards: int = Field(default=1, ge=1, le=64)


class SettingsError(ValueError):
    """The environment is not usable; the message lists everything that is wrong, one line each."""


S = TypeVar("S", bound=BaseSettings)


def load(cls: type[S]) -> S:
    """Read `cls` from the environment.

    Raises SettingsError that names every missing or wrong variable at once, never a secret's value.
    """
    try:
        return cls()
    except ValidationError as error:
        prefix = cls.model_config.get("env_prefix", "")
        lines = []
        for item in error.errors():
            name = "_".join(str(part) for part in item["loc"])
            # A field with an alias is told by that: it is the variable's whole name already.
            shown = prefix + name if not item["loc"] or item["loc"][0] in cls.model_fields else name
            lines.append(f"  {shown.upper()}: {item['msg']}")
        raise SettingsError("settings are wrong:\n" + "\n".join(sorted(lines))) from None
