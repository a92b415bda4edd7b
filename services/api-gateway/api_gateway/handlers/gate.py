"""Who calls: an API key from the headers, its row from a cache of seconds, its scopes against the route's.

Invariant: a route answers only to query parameters that it names here, so that a misspelt filter is never ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime

from headrace_kit.errors import PermissionDenied, Unauthenticated, Unavailable
from starlette.datastructures import Headers
from starlette.requests import Request

from api_gateway.adapters.keys_store import KeysStore
from api_gateway.domain import keys
from api_gateway.domain.keys import Principal
from api_gateway.handlers.http import refuse_unknown_query

CACHE_SECONDS = 2.0
"""A revoked key must be refused within 5 s; a busy one is then looked up every 2 s, not on each request."""
CACHE_KEYS = 10_000
"""Entries at which the cache begins anew: about 4 MB."""


class Gate:
    """Authenticates requests."""

    def __init__(self, store: KeysStore, ready: asyncio.Event) -> None:
        """Prepare; until `ready` is set everybody is told to come back."""
        self._store = store
        self._ready = ready
        self._cache: dict[bytes, tuple[Principal, float]] = {}

    async def require(self, request: Request, scope: str, *, query: Collection[str] = ()) -> Principal:
        """Return whom the request's key speaks for; `query` names the parameters that the route takes.

        Raises Unauthenticated without a valid key, PermissionDenied without the scope, Unavailable while starting,
        InvalidArgument for any other query parameter.
        """
        if not self._ready.is_set():
            raise Unavailable("this replica is starting", reason="STARTING", retry_after_seconds=1.0)
        key = _key_of(request.headers)
        if not key:
            raise Unauthenticated("send Authorization: Bearer <API key>, or x-api-key", reason="KEY_MISSING")
        principal = await self._lookup(key) if keys.looks_like_key(key) else None
        if principal is None or (principal.expires_at and principal.expires_at <= datetime.now(UTC)):
            raise Unauthenticated("the API key is not valid", reason="KEY_INVALID")
        if scope not in principal.scopes:
            raise PermissionDenied(
                f"the API key has no scope {scope}", reason="SCOPE_MISSING", metadata={"scope": scope}
            )
        refuse_unknown_query(request, query)
        return principal

    async def _lookup(self, key: str) -> Principal | None:
        digest, now = keys.digest(key), asyncio.get_running_loop().time()
        cached = self._cache.get(digest)
        if cached and cached[1] > now:
            return cached[0]
        principal = await self._store.find(digest)
        if principal is None:
            self._cache.pop(digest, None)
            return None
        if len(self._cache) >= CACHE_KEYS:
            self._cache.clear()
        self._cache[digest] = (principal, now + CACHE_SECONDS)
        return principal

    def forget(self, key_id: str) -> None:
        """Drop a key that this replica revoked, so that its next request is refused at once."""
        self._cache = {digest: entry for digest, entry in self._cache.items() if entry[0].key_id != key_id}


def _key_of(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key", "").strip()
