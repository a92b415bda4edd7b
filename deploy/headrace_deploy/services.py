"""The services of a deployment: how each is started and what its environment holds, which is its own secrets only."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace_kit.auth import sha256_hex

from headrace_deploy.state import State

STACK_MARK = "HEADRACE_STACK"
"""Set to the run folder in every process of a deployment, children included: by it `down` finds what is left."""
MODEL_SERVICE = "model-provider"
"""The scripted model provider, started only when the user named no model."""
CLI_TOKEN = "cli"  # noqa: S105  # the name of a token, not one


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One service: its module, and which of the deployment's secrets it gets."""

    name: str
    module: str
    health: str
    """How readiness is asked for: grpc, http or tcp."""
    roles: tuple[str, ...] = ()
    """PostgreSQL roles whose addresses it gets."""
    redis: bool = False
    token: bool = True
    inherits_all: bool = False
    """Gets the user's whole environment, as graph code may need any of it."""
    arguments: tuple[str, ...] = field(default=())
    stop_stage: int = 0
    """When it is stopped, an index of STOP_STAGE_SECONDS: a stage begins after the one before has ended."""

    def command(self, address: str) -> list[str]:
        """Return the command line; it holds no secret."""
        return [sys.executable, "-m", self.module, *(argument.format(address=address) for argument in self.arguments)]


# Order of an end: first api-gateway and run-worker, so that no work comes in while short runs end (10 s) and the others
# are handed back; those runs use sandboxes and publish until then, so the provisioner and the relay end after them; the
# model provider is last, because a run that loses it is handed back instead of ended.
STOP_STAGE_SECONDS = (20.0, 15.0, 5.0)
"""From SIGTERM to SIGKILL, for each stage: longer than the services' own drain (19 s, 5 s and none)."""

SPECS = (
    ServiceSpec(
        "run-worker",
        "run_worker",
        "grpc",
        roles=("control", "executor", "graph", "graph_read"),
        redis=True,
        inherits_all=True,
    ),
    ServiceSpec("event-relay", "event_relay", "grpc", roles=("relay",), redis=True, stop_stage=1),
    ServiceSpec("sandbox-provisioner", "sandbox_provisioner", "grpc", roles=("provisioner",), stop_stage=1),
    ServiceSpec("api-gateway", "api_gateway", "http", roles=("gateway",)),
    ServiceSpec(
        MODEL_SERVICE,
        "headrace_loadtest.provider",
        "tcp",
        token=False,
        arguments=("--listen", "{address}"),
        stop_stage=2,
    ),
)

_PASSED_ON = frozenset({"HOME", "LANG", "LC_ALL", "PATH", "PYTHONPATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV"})
_PASSED_ON_PREFIXES = ("DOCKER_", "GRPC_", "OTEL_", "PYTHON", "SSL_CERT_", "HEADRACE_")
_MODEL_ONLY = ("HEADRACE_MODEL_API_KEY", "HEADRACE_MODEL_BASE_URL", "HEADRACE_MODEL_NAME")
_NEVER_PASSED_ON = frozenset(
    {"HEADRACE_API_KEY", "HEADRACE_POSTGRES_URL", "HEADRACE_REDIS_URL", "HEADRACE_SERVICE_TOKEN"}
)


def specs_for(environ: Mapping[str, str] = os.environ) -> tuple[ServiceSpec, ...]:
    """Return the services to start: without the scripted model when the user named a model."""
    named = bool(environ.get("HEADRACE_MODEL_BASE_URL"))
    return tuple(spec for spec in SPECS if not (named and spec.name == MODEL_SERVICE))


def make_tokens(known: Mapping[str, str]) -> dict[str, str]:
    """Return a token for each calling service, keeping those that exist."""
    callers = [spec.name for spec in SPECS if spec.token] + [CLI_TOKEN]
    return {name: known.get(name) or secrets.token_urlsafe(32) for name in callers}


def make_api_key() -> str:
    """Return a new key: a public part that identifies it and a secret part."""
    return f"hr_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def environment(
    spec: ServiceSpec, *, state: State, run_dir: Path, budget_path: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a service: settings for all, and of the secrets only its own."""
    own = settings(spec, state=state, run_dir=run_dir, budget_path=budget_path, inherited=inherited)
    own |= {f"HEADRACE_{role.upper()}_DSN": state.dsns[role] for role in spec.roles}
    if spec.token:
        own["HEADRACE_SERVICE_TOKEN"] = state.tokens[spec.name]
    if spec.redis and state.redis is not None:
        own["HEADRACE_REDIS_URL"] = state.redis.url
    if spec.name == "api-gateway":
        own |= {"HEADRACE_FIRST_KEY_SHA256": sha256_hex(state.api_key), "HEADRACE_FIRST_KEY_UID": state.uid}
    return own


def settings(
    spec: ServiceSpec, *, state: State, run_dir: Path, budget_path: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the part of a service's environment that holds no secret of the deployment.

    The addresses in `state` must be chosen, servers and roles need not exist: a test load of graphs comes before them.
    """
    own = {
        name: value
        for name, value in inherited.items()
        if (spec.inherits_all or name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES))
        and name not in _NEVER_PASSED_ON
        and not (name.startswith("HEADRACE_") and name.endswith("_DSN"))
        and (spec.inherits_all or name not in _MODEL_ONLY)
    }
    # gRPC's remarks about forks: processes are exec'ed here, never forked to go on.
    own = {"GRPC_VERBOSITY": "ERROR", "GRPC_ENABLE_FORK_SUPPORT": "0"} | own
    own |= {
        STACK_MARK: str(run_dir),
        "HEADRACE_BUDGET_FILE": str(budget_path),
        "HEADRACE_DATA_DIR": str(run_dir / "data"),
        "HEADRACE_DEPLOYMENT": state.deployment,
        "HEADRACE_EXECUTORS": str(state.executors),
        "HEADRACE_LISTEN": state.services[spec.name].address,
        "HEADRACE_RUN_DIR": str(run_dir),
        "HEADRACE_TOKENS_FILE": str(run_dir / "tokens.json"),
    }
    for name in ("run-worker", "event-relay", "sandbox-provisioner"):
        own[f"HEADRACE_{name.upper().replace('-', '_')}_ADDRESS"] = state.services[name].address
    if spec.name == "run-worker" and MODEL_SERVICE in state.services:
        own["HEADRACE_MODEL_BASE_URL"] = state.model_url
        own["HEADRACE_MODEL_API_KEY"] = own.get("HEADRACE_MODEL_API_KEY") or "scripted"
        own["HEADRACE_MODEL_NAME"] = own.get("HEADRACE_MODEL_NAME") or "scripted"
    return own
