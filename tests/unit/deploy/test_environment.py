"""Each service gets its own secrets and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_deploy.services import SPECS, environment, make_tokens, settings, specs_for
from headrace_deploy.state import ServerState, ServiceState, State
from headrace_kit.auth import sha256_hex

ROLES = ("gateway", "control", "executor", "graph_read", "graph", "relay", "provisioner", "migrate")
INHERITED = {
    "PATH": "/bin",
    "OPENAI_API_KEY": "users-own",
    "HEADRACE_MODEL_API_KEY": "model-key",
    "HEADRACE_POSTGRES_URL": "postgresql://root:secret@db/x",
    "HEADRACE_REDIS_URL": "redis://:old@r/0",
    "HEADRACE_CONTROL_DSN": "stale",
    "HEADRACE_SERVICE_TOKEN": "stale",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
}


@pytest.fixture
def state() -> State:
    return State(
        api_key="hr_x_y",
        dsns={role: f"dsn-of-{role}" for role in ROLES},
        tokens=make_tokens({}),
        redis=ServerState(managed=True, url="redis://:pw@127.0.0.1:1/0"),
        services={spec.name: ServiceState(address=f"127.0.0.1:{port}") for port, spec in enumerate(SPECS, 9000)},
        model_url="http://127.0.0.1:9/v1",
    )


def given_to(name: str, state: State) -> dict[str, str]:
    spec = next(spec for spec in SPECS if spec.name == name)
    return environment(spec, state=state, run_dir=Path("/r"), budget_path=Path("/b"), inherited=INHERITED)


def test_each_role_of_the_budget_goes_to_exactly_one_service(state: State) -> None:
    """1. All environments are made. 2. Each address of a role is in one of them; the owner's is in none."""
    everywhere = [
        value for spec in SPECS for value in given_to(spec.name, state).values() if value.startswith("dsn-of")
    ]
    assert sorted(everywhere) == sorted(f"dsn-of-{role}" for role in ROLES if role != "migrate")


def test_each_service_has_its_own_token_and_nothing_of_the_administrator(state: State) -> None:
    """1. All environments are made. 2. Tokens are each service's own; the administrator's addresses are in none."""
    for spec in SPECS:
        env = given_to(spec.name, state)
        assert env.get("HEADRACE_SERVICE_TOKEN") == (state.tokens[spec.name] if spec.token else None)
        assert "HEADRACE_POSTGRES_URL" not in env
        assert "stale" not in env.values()
        others = {token for name, token in state.tokens.items() if name != spec.name}
        assert not others & set(env.values())


def test_only_graph_code_sees_the_users_environment(state: State) -> None:
    """1. The user has keys of model providers. 2. The run-worker gets them, no other service does; all may trace."""
    for spec in SPECS:
        env = given_to(spec.name, state)
        assert ("users-own" in env.values()) == (spec.name == "run-worker")
        assert ("model-key" in env.values()) == (spec.name == "run-worker")
        assert env["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://127.0.0.1:4318"


def test_a_test_load_of_graphs_sees_the_executors_model_and_no_secret(state: State) -> None:
    """1. Addresses are chosen, nothing else is. 2. The settings hold the model as later on, and no dsn or token."""
    worker = next(spec for spec in SPECS if spec.name == "run-worker")
    early = State(services=state.services, model_url=state.model_url)
    seen = settings(worker, state=early, run_dir=Path("/r"), budget_path=Path("/b"), inherited=INHERITED)
    later = given_to("run-worker", state)
    model = [name for name in later if name.startswith("HEADRACE_MODEL_")]
    assert len(model) == 3
    assert {name: seen[name] for name in model} == {name: later[name] for name in model}
    assert not [name for name in seen if name.endswith(("_DSN", "_TOKEN", "_REDIS_URL", "_POSTGRES_URL"))]


def test_redis_and_the_first_key_go_where_they_are_used(state: State) -> None:
    """1. All environments are made. 2. Redis is for worker and relay; the key is in none, its digest in one."""
    assert {s.name for s in SPECS if "HEADRACE_REDIS_URL" in given_to(s.name, state)} == {"run-worker", "event-relay"}
    gateway = given_to("api-gateway", state)
    assert gateway["HEADRACE_FIRST_KEY_SHA256"] == sha256_hex("hr_x_y")
    assert not any("hr_x_y" in given_to(spec.name, state).values() for spec in SPECS)


def test_the_scripted_model_serves_only_who_named_none() -> None:
    """1. The user names a model. 2. The scripted provider is not started. 3. Without, it is."""
    assert len(specs_for({"HEADRACE_MODEL_BASE_URL": "http://m/v1"})) == len(specs_for({})) - 1
