"""Trust between services: one bearer token per calling service; only with it is `x-headrace-user` believed."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from opentelemetry import propagate

from headrace_kit.errors import Unauthenticated

USER_HEADER = "x-headrace-user"
SCOPES_HEADER = "x-headrace-scopes"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a service, for a user. `uid` is empty when the service calls for itself."""

    service: str
    uid: str = ""
    scopes: frozenset[str] = frozenset()


_caller: ContextVar[Caller] = ContextVar("headrace_caller")


def current_caller() -> Caller:
    """Return the caller of the RPC being handled.

    Raises Unauthenticated outside of one.
    """
    caller = _caller.get(None)
    if caller is None:
        raise Unauthenticated("no caller", reason="CALLER_MISSING")
    return caller


def require_user() -> str:
    """Return the uid that the RPC acts for.

    Raises Unauthenticated when the calling service named none.
    """
    uid = current_caller().uid
    if not uid:
        raise Unauthenticated(f"the call names no user; send {USER_HEADER}", reason="USER_MISSING")
    return uid


def set_caller(caller: Caller) -> None:
    """Set the caller for the current task; the server interceptor does."""
    _caller.set(caller)


def sha256_hex(secret: str) -> str:
    """Return the digest under which a token or key is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenBook:
    """The accepted tokens, by digest; the file is read again when it changed, so that a new token needs no restart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = -1
        self._by_digest: dict[str, str] = {}

    def _refresh(self) -> None:
        stamp = self._path.stat().st_mtime_ns
        if stamp != self._stamp:
            self._by_digest = {digest: name for name, digest in json.loads(self._path.read_text()).items()}
            self._stamp = stamp

    def verify(self, token: str) -> str:
        """Return the name of the service that owns `token`.

        Raises Unauthenticated when nobody does.
        """
        self._refresh()
        digest = sha256_hex(token)
        for known, name in self._by_digest.items():
            if hmac.compare_digest(known, digest):
                return name
        raise Unauthenticated("the service token is not known", reason="SERVICE_TOKEN_INVALID")


def caller_from_metadata(metadata: Iterable[tuple[str, str | bytes]], tokens: TokenBook) -> Caller:
    """Return the caller that a call's metadata proves.

    Raises Unauthenticated without a valid bearer token.
    """
    values = {key.lower(): value for key, value in metadata if isinstance(value, str)}
    scheme, _, token = values.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated("send authorization: Bearer <service token>", reason="SERVICE_TOKEN_MISSING")
    service = tokens.verify(token)
    scopes = frozenset(scope for scope in values.get(SCOPES_HEADER, "").split(",") if scope)
    return Caller(service=service, uid=unquote(values.get(USER_HEADER, "")), scopes=scopes)


def call_metadata(token: str, *, uid: str = "", scopes: Iterable[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return the metadata of an outgoing call: token, user, scopes and the current trace context."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    metadata = [("authorization", f"Bearer {token}"), *carrier.items()]
    if uid:
        metadata.append((USER_HEADER, quote(uid, safe="")))
    if scopes:
        metadata.append((SCOPES_HEADER, ",".join(sorted(scopes))))
    return tuple(metadata)
