"""The provider's address: what is none is refused before anything is sent, and errors name the setting, not secrets."""

from __future__ import annotations

import pytest
from headrace_agent import ModelRefused
from headrace_agent.addresses import checked, host_and_port


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://localhost:8000/v1/", "localhost:8000"),
        ("https://api.example.com/v1", "api.example.com:443"),
        ("http://user:pass@10.0.0.1/v1", "10.0.0.1:80"),
        ("http://[::1]:9/v1", "[::1]:9"),
    ],
)
def test_host_and_port_of_addresses(url: str, place: str) -> None:
    assert host_and_port(checked(url)) == place


@pytest.mark.parametrize(
    "url", ["localhost:8000/v1", "ftp://host/v1", "http://", "http://host:port/v1", "http://host:99999", "http://a b/"]
)
def test_what_is_no_address_is_refused_and_names_the_setting(url: str) -> None:
    with pytest.raises(ModelRefused, match="HEADRACE_MODEL_BASE_URL") as caught:
        checked(url)
    assert caught.value.reason == "model_not_configured"


def test_an_address_without_scheme_is_completed() -> None:
    with pytest.raises(ModelRefused, match="write http://localhost:8000/v1"):
        checked("localhost:8000/v1")


def test_secrets_in_an_address_are_not_told() -> None:
    """1. The address holds a password, or the key by mistake. 2. Neither is in the error."""
    for url in ("me:pa55word@host/v1", "host/v1?key=sk-secret"):
        with pytest.raises(ModelRefused) as caught:
            checked(url, "sk-secret")
        assert "pa55word" not in str(caught.value)
        assert "sk-secret" not in str(caught.value)


def test_a_password_in_the_address_beside_a_key_is_refused() -> None:
    with pytest.raises(ModelRefused, match="one of the two"):
        checked("http://me:pa55word@host/v1", "sk-secret")
