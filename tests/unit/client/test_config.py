"""Where the server and the key come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headrace_client.config import find_target, state_path
from headrace_client.errors import BadRequest, NotConfigured


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / ".run").mkdir()
    state = {"base_url": "http://127.0.0.1:7000", "api_key": "hr_local"}
    (tmp_path / ".run" / "state.json").write_text(json.dumps(state))
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    return inside


def test_state_is_found_upwards(checkout: Path) -> None:
    target = find_target(environ={}, start=checkout)
    assert (target.base_url, target.api_key) == ("http://127.0.0.1:7000", "hr_local")


def test_arguments_win_over_environment_over_state(checkout: Path) -> None:
    environ = {"HEADRACE_URL": "http://env", "HEADRACE_API_KEY": "hr_env"}
    assert find_target(environ=environ, start=checkout).base_url == "http://env"
    target = find_target("http://arg/", "hr_arg", environ=environ, start=checkout)
    assert (target.base_url, target.api_key) == ("http://arg", "hr_arg")


def test_local_key_is_not_sent_elsewhere(checkout: Path) -> None:
    """
    1. the environment names another server and no key
    2. the key of the local deployment is not used for it
    """
    with pytest.raises(NotConfigured, match="no API key for http://elsewhere"):
        find_target(environ={"HEADRACE_URL": "http://elsewhere"}, start=checkout)


def test_local_address_by_url_uses_the_local_key(checkout: Path) -> None:
    assert find_target("http://127.0.0.1:7000/", environ={}, start=checkout).api_key == "hr_local"


def test_nothing_configured_says_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(NotConfigured, match="headrace up"):
        find_target(environ={}, start=tmp_path)


def test_broken_state_is_named(checkout: Path) -> None:
    path = state_path(environ={}, start=checkout)
    assert path is not None
    path.write_text("{")
    with pytest.raises(NotConfigured, match=r"state\.json is not readable"):
        find_target(environ={}, start=checkout)


def test_run_dir_of_the_environment_wins(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "state.json").write_text(json.dumps({"base_url": "http://127.0.0.1:8000", "api_key": "hr_other"}))
    assert find_target(environ={"HEADRACE_RUN_DIR": str(other)}, start=checkout).api_key == "hr_other"


def test_key_is_not_in_the_repr(checkout: Path) -> None:
    assert "hr_local" not in repr(find_target(environ={}, start=checkout))


@pytest.mark.parametrize("url", ["localhost:38541", "example.com"])
def test_address_without_scheme_says_what_to_write(url: str) -> None:
    with pytest.raises(BadRequest, match=f"write http://{url}"):
        find_target(url, "hr_key", environ={})


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "http://host:99999", "http://a b"])
def test_address_of_no_http_server_is_the_callers_mistake(url: str) -> None:
    with pytest.raises(BadRequest, match="not the address of a server"):
        find_target(url, "hr_key", environ={})


def test_key_that_no_header_can_carry_is_refused_without_being_told() -> None:
    """1. A key was pasted with a new line around it: fine. 2. Characters within that no key has: refused, unnamed."""
    assert find_target("http://host", " hr_key\n", environ={}).api_key == "hr_key"
    for key in ("hr_s\u00fccret", "hr_a\nb"):
        with pytest.raises(BadRequest) as caught:
            find_target("http://host", key, environ={})
        assert key not in str(caught.value)
