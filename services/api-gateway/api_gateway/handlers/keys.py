"""/v1/keys, for admins: the key itself is shown once, by the call that makes it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api_gateway.adapters.keys_store import KeysStore
from api_gateway.domain import bodies, keys, serial
from api_gateway.handlers.gate import Gate
from api_gateway.handlers.http import PAGE_QUERY, answer, page_of, read_body

PAGE = 50
MAX_PAGE = 200
"""Sizes of a page, as run-worker's lists have them."""


class Keys:
    """The routes of API keys."""

    def __init__(self, gate: Gate, store: KeysStore, *, body_bytes: int) -> None:
        self._gate = gate
        self._store = store
        self._body_bytes = body_bytes

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/keys", self.create, methods=["POST"]),
            Route("/v1/keys", self.list, methods=["GET"]),
            Route("/v1/keys/{key_id}", self.revoke, methods=["DELETE"]),
        ]

    async def create(self, request: Request) -> Response:
        """Make a key, for the caller's own user when none is named."""
        principal = await self._gate.require(request, keys.ADMIN)
        body = await read_body(request, bodies.CreateKey, limit=self._body_bytes)
        key_id, key = keys.mint()
        made = await self._store.insert(
            key_id=key_id,
            uid=body.uid or principal.uid,
            digest=keys.digest(key),
            scopes=sorted(set(body.scopes)),
            label=body.label,
            seconds=body.expires_in_seconds,
        )
        return answer({**serial.api_key(made), "key": key}, status=201)

    async def list(self, request: Request) -> Response:
        """List all keys, newest first, the revoked ones too."""
        await self._gate.require(request, keys.ADMIN, query=PAGE_QUERY)
        size, token = page_of(request)
        found, following = await self._store.list(page_size=min(size or PAGE, MAX_PAGE), page_token=token)
        return answer(serial.page("keys", map(serial.api_key, found), following))

    async def revoke(self, request: Request) -> Response:
        """Revoke a key: refused at once here, within seconds by other replicas and in open streams."""
        await self._gate.require(request, keys.ADMIN)
        key_id = request.path_params["key_id"]
        await self._store.revoke(key_id)
        self._gate.forget(key_id)
        return Response(status_code=204)
