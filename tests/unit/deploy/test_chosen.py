"""What the user chose for `up`: wrong values are told together, changed and forgotten ones by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from headrace_deploy.chosen import changed, check, forgotten, remember
from headrace_deploy.state import ServerState, ServiceState, State
from headrace_kit.settings import SettingsError

MODEL = {
    "HEADRACE_MODEL_BASE_URL": "https://user:word@m.example/v1",
    "HEADRACE_MODEL_NAME": "m",
    "HEADRACE_MODEL_API_KEY": "sk-secret",
}


def started(environ: dict[str, str]) -> State:
    """Return the state of a deployment that was started with these variables."""
    return State(
        chosen=remember(environ),
        executors=int(environ.get("HEADRACE_EXECUTORS", 2)),
        services={"api-gateway": ServiceState(address="127.0.0.1:8080")},
        postgres=ServerState(managed=True, url="", source="wheels"),
        redis=ServerState(managed=True, url="", source="wheels"),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_EXECUTORS", "abc"),
        ("HEADRACE_EXECUTORS", "0"),
        ("HEADRACE_EXECUTORS", "-1"),
        ("HEADRACE_EXECUTORS", "65"),
        ("HEADRACE_EXECUTORS", "²"),
        ("HEADRACE_PORT", "abc"),
        ("HEADRACE_PORT", "65536"),
        ("HEADRACE_SERVERS", "wheel"),
        ("HEADRACE_DEPLOYMENT", "My-Own"),
        ("HEADRACE_BUDGET_FILE", "/absent.toml"),
        ("HEADRACE_LANGGRAPH_JSON", "/absent.json"),
        ("HEADRACE_POSTGRES_URL", "host=db"),
        ("HEADRACE_REDIS_URL", "db:6379"),
        ("HEADRACE_MODEL_BASE_URL", "m.example/v1"),
        ("HEADRACE_MODEL_BASE_URL", "ftp://m.example/v1"),
        ("HEADRACE_MODEL_BASE_URL", "http://m:port/v1"),
    ],
)
def test_a_wrong_value_is_told_in_one_line(name: str, value: str) -> None:
    """1. A variable is wrong. 2. The error is one line that begins with its name."""
    with pytest.raises(SettingsError) as caught:
        check({"HEADRACE_MODEL_NAME": "m", name: value})
    assert str(caught.value).startswith(f"{name}: ")
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_told_at_once_and_no_secret_is() -> None:
    """1. Three variables are wrong, a model has no name. 2. There are four lines; no password is in them."""
    environ = {"HEADRACE_EXECUTORS": "x", "HEADRACE_PORT": "y", "HEADRACE_POSTGRES_URL": "mysql://u:hidden@h/d"}
    with pytest.raises(SettingsError) as caught:
        check(environ | {"HEADRACE_MODEL_BASE_URL": "http://m.example/v1"})
    lines = str(caught.value).splitlines()
    assert sorted(line.partition(":")[0].removeprefix("HEADRACE_") for line in lines) == [
        "EXECUTORS",
        "MODEL_NAME",
        "PORT",
        "POSTGRES_URL",
    ]
    assert "hidden" not in str(caught.value)


def test_what_is_right_or_not_set_passes() -> None:
    """1. Nothing is set, or all is right. 2. No complaint."""
    check({})
    check({"HEADRACE_EXECUTORS": "", "HEADRACE_PORT": ""})
    check(MODEL | {"HEADRACE_EXECUTORS": "64", "HEADRACE_PORT": "1", "HEADRACE_REDIS_URL": "unix:///run/r.sock"})


def test_no_secret_is_remembered() -> None:
    """1. A model with a key, and servers with passwords. 2. Neither keys nor passwords are in what is remembered."""
    kept = remember(
        MODEL | {"HEADRACE_POSTGRES_URL": "postgresql://u:word@h/d", "HEADRACE_REDIS_URL": "redis://:word@h"}
    )
    assert set(MODEL) < set(kept)
    assert not [value for value in kept.values() if "word" in value or "secret" in value]


def test_changed_settings_are_named_and_equal_or_absent_ones_are_not() -> None:
    """1. A deployment runs with a model. 2. Other values are named; equal ones, defaults and unset ones are not."""
    state = started(MODEL)
    assert changed(state, {}) == []
    assert changed(state, MODEL) == []
    assert changed(state, {"HEADRACE_EXECUTORS": "02", "HEADRACE_PORT": "8080", "HEADRACE_SERVERS": "wheels"}) == []
    others = {
        "HEADRACE_EXECUTORS": "3",
        "HEADRACE_LANGGRAPH_JSON": "/a/langgraph.json",
        "HEADRACE_MODEL_API_KEY": "sk-other",
        "HEADRACE_PORT": "8081",
        "HEADRACE_REDIS_URL": "redis://h/0",
        "HEADRACE_SERVERS": "system",
    }
    assert sorted(changed(state, MODEL | others)) == sorted(others)
    assert changed(State(), others) == []


def test_a_path_is_the_same_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Started with a relative path. 2. The absolute one of the same file is no change; a second file is."""
    monkeypatch.chdir(tmp_path)
    state = started({"HEADRACE_LANGGRAPH_JSON": "langgraph.json"})
    whole = str(tmp_path / "langgraph.json")
    assert changed(state, {"HEADRACE_LANGGRAPH_JSON": whole}) == []
    assert changed(state, {"HEADRACE_LANGGRAPH_JSON": os.pathsep.join((whole, "other.json"))}) != []


def test_forgotten_graphs_are_told_with_their_path_and_a_model_without_its_address() -> None:
    """1. The last start had graphs and a model. 2. Without them a line tells each; the model's has no password."""
    state = started(MODEL | {"HEADRACE_LANGGRAPH_JSON": "/a/langgraph.json"})
    graphs, model = forgotten(state, {})
    assert "HEADRACE_LANGGRAPH_JSON=/a/langgraph.json" in graphs
    assert "HEADRACE_MODEL_BASE_URL, this one has not: the scripted model answers" in model
    assert forgotten(state, MODEL | {"HEADRACE_LANGGRAPH_JSON": "/b.json"}) == []
    assert forgotten(State(), {}) == []
