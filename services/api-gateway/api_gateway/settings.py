"""Settings of the gateway, from the environment."""

from __future__ import annotations

from headrace_kit.settings import CommonSettings
from pydantic import Field, SecretStr


class GatewaySettings(CommonSettings):
    """Where the gateway listens, and whom it calls. Each field `x` is the environment variable `HEADRACE_X`."""

    gateway_dsn: SecretStr
    """PostgreSQL as role gateway: API keys only."""
    run_worker_address: str
    """host:port of run-worker's control."""
    event_relay_address: str
    """host:port of event-relay."""
    sandbox_provisioner_address: str
    """host:port of sandbox-provisioner; asked for its health only."""
    first_key_sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """sha256 (hex) of the first API key, made sure of at start; empty for none."""
    first_key_uid: str = Field(default="local", min_length=1, max_length=200)
    """User whom the first key belongs to."""
