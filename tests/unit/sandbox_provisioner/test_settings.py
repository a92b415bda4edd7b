"""The service's settings: both names of the engine's address, and what is refused."""

from __future__ import annotations

import pytest
from headrace_kit.settings import SettingsError, load
from sandbox_provisioner.settings import DEFAULT_DOCKER_HOST, ProvisionerSettings

REQUIRED = {
    "HEADRACE_BUDGET_FILE": "budget.toml",
    "HEADRACE_TOKENS_FILE": "tokens.json",
    "HEADRACE_DATA_DIR": "data",
    "HEADRACE_PROVISIONER_DSN": "postgresql://role:pass-word@127.0.0.1/db",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "HEADRACE_DOCKER_HOST", "HEADRACE_SANDBOX_POOL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in REQUIRED.items():
        monkeypatch.setenv(name, value)


def test_the_engines_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Nothing is set: Docker's own socket.  2. DOCKER_HOST is honoured.  3. Our own name wins over it."""
    assert load(ProvisionerSettings).docker_host == DEFAULT_DOCKER_HOST
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    assert load(ProvisionerSettings).docker_host == "tcp://127.0.0.1:2375"
    monkeypatch.setenv("HEADRACE_DOCKER_HOST", "unix:///run/engine.sock")
    assert load(ProvisionerSettings).docker_host == "unix:///run/engine.sock"


def test_everything_wrong_is_told_at_once_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. An address with a credential, and a pool that is too small.  2. One error names both, not their values."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://user:hunter2@engine:2375")
    monkeypatch.setenv("HEADRACE_SANDBOX_POOL", "10.0.0.0/30")
    with pytest.raises(SettingsError) as caught:
        load(ProvisionerSettings)
    told = str(caught.value)
    assert "HEADRACE_DOCKER_HOST" in told
    assert "HEADRACE_SANDBOX_POOL" in told
    assert "hunter2" not in told
    assert "pass-word" not in told


def test_secrets_do_not_show() -> None:
    """1. Settings are printed.  2. The DSN with its password is not."""
    assert "pass-word" not in repr(load(ProvisionerSettings))
