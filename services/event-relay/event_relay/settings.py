"""Settings of the relay: PostgreSQL to ask and Redis to read; figures come from the budget file."""

from __future__ import annotations

from headrace_kit.settings import CommonSettings
from pydantic import SecretStr


class RelaySettings(CommonSettings):
    """What the relay reads beside the common settings. Field `x` is the environment variable `HEADRACE_X`."""

    relay_dsn: SecretStr
    """PostgreSQL as role relay: three views of run-worker, SELECT only."""
    redis_url: SecretStr
    """The Redis that holds the runs' streams."""
