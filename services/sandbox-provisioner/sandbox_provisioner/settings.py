"""Settings of the sandbox-provisioner."""

from __future__ import annotations

from ipaddress import IPv4Network

from headrace_kit.settings import CommonSettings
from pydantic import AliasChoices, Field, SecretStr, field_validator

from sandbox_provisioner.domain import subnets

DEFAULT_DOCKER_HOST = "unix:///var/run/docker.sock"


class ProvisionerSettings(CommonSettings):
    """What this service reads beside the common variables."""

    provisioner_dsn: SecretStr
    """PostgreSQL, role `<deployment>_provisioner`."""
    docker_host: str = Field(
        default=DEFAULT_DOCKER_HOST,
        # HEADRACE_DOCKER_HOST first; the name that every Docker tool reads is honoured too.
        validation_alias=AliasChoices("HEADRACE_DOCKER_HOST", "DOCKER_HOST"),
        # No '@': the address is told to callers and to the log, so it may hold no credential.
        pattern=r"^(unix|tcp)://[^@\s]+$",
    )
    """Address of the container engine: unix:///path or tcp://host:port."""
    sandbox_pool: IPv4Network = subnets.DEFAULT_POOL
    """Addresses of all sandboxes, cut into one /28 for each."""

    @field_validator("sandbox_pool")
    @classmethod
    def _holds_a_subnet(cls, pool: IPv4Network) -> IPv4Network:
        if subnets.count(pool) == 0:
            raise ValueError(f"{pool} is smaller than one /{subnets.PREFIX}")
        return pool
