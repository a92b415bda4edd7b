"""API keys: `hr_<key_id>_<secret>`, known to the database by the sha256 of the whole text only."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final

READ: Final = "read"
WRITE: Final = "write"
ADMIN: Final = "admin"

FIRST_KEY_ID: Final = "first"
"""Row of the key that the environment names; its text is not known here, so it has a name of its own."""

_KEY = re.compile(r"hr_[A-Za-z0-9_-]{16,200}")

_IMPLIED: Final = {READ: {READ}, WRITE: {READ, WRITE}, ADMIN: {READ, WRITE, ADMIN}}


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a key speaks for, and what it may do (scopes with those that they imply)."""

    key_id: str
    uid: str
    scopes: frozenset[str]
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key's row: everything but the key."""

    key_id: str
    uid: str
    scopes: tuple[str, ...]
    label: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


def looks_like_key(text: str) -> bool:
    """Return whether a lookup is worth a round trip."""
    return _KEY.fullmatch(text) is not None


def digest(key: str) -> bytes:
    """Return what is stored of a key: a fast hash is enough, the secret has 256 random bits."""
    return hashlib.sha256(key.encode()).digest()


def mint() -> tuple[str, str]:
    """Return a new key's id and the key."""
    key_id = secrets.token_hex(6)
    return key_id, f"hr_{key_id}_{secrets.token_urlsafe(32)}"


def with_implied(scopes: frozenset[str] | set[str] | tuple[str, ...] | list[str]) -> frozenset[str]:
    """Return the scopes and those they imply: write may read, admin may all. Unknown ones give nothing."""
    granted: set[str] = set()
    for scope in scopes:
        granted |= _IMPLIED.get(scope, set())
    return frozenset(granted)
