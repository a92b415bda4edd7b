"""API keys as texts."""

from __future__ import annotations

from api_gateway.domain import keys
from hypothesis import given
from hypothesis import strategies as st


def test_minted_keys_are_keys_of_their_id() -> None:
    """
    1. Keys are minted.
    2. Each looks like one, names its id, and is like no other.
    """
    minted = [keys.mint() for _ in range(100)]
    assert all(keys.looks_like_key(key) and key.startswith(f"hr_{key_id}_") for key_id, key in minted)
    assert len({key for _, key in minted}) == 100


@given(st.text(max_size=300))
def test_other_texts_cost_no_lookup(text: str) -> None:
    """
    1. Any text comes as a key.
    2. Only one of a key's form is looked up.
    """
    assert not keys.looks_like_key(text) or text.startswith("hr_")


@given(st.lists(st.sampled_from(["read", "write", "admin", "root", ""])))
def test_implied_scopes(scopes: list[str]) -> None:
    """
    1. A key has any scopes, unknown ones too.
    2. admin implies write, write implies read, and an unknown one implies nothing.
    """
    granted = keys.with_implied(scopes)
    assert granted <= {"read", "write", "admin"}
    assert ("admin" in granted) == ("admin" in scopes)
    assert ("write" in granted) == bool({"admin", "write"} & set(scopes))
    assert ("read" in granted) == bool({"admin", "write", "read"} & set(scopes))
