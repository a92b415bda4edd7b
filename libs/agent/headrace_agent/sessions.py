"""HTTP connections to model providers: one pool per event loop, kept while the loop lives.

Invariant: nobody has to close one. A loop that ends as `asyncio.run` ends it closes its own; what other loops leave is
closed when its loop is found closed, or when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
from collections.abc import AsyncGenerator, MutableMapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import aiohttp

CONNECT_SECONDS = 10.0
"""TCP and TLS to the provider; a host that is up answers in far less."""


@dataclass(frozen=True, slots=True)
class _Open:
    session: aiohttp.ClientSession
    connector: aiohttp.TCPConnector
    keeper: AsyncGenerator[None, None]


# One pool of connections per event loop, which is what an HTTP session belongs to. Filled by use, never at import.
_sessions: MutableMapping[asyncio.AbstractEventLoop, _Open] = WeakKeyDictionary()


async def session() -> aiohttp.ClientSession:
    """Return the running loop's session, opened if there is none."""
    loop = asyncio.get_running_loop()
    found = _sessions.get(loop)
    if found is None or found.session.closed:
        # A session refers to its loop, so those of loops that are closed do not go by themselves.
        for closed in [other for other in _sessions if other.is_closed()]:
            _drop(_sessions.pop(closed))
        found = _opened()
        _sessions[loop] = found
        atexit.unregister(_drop_all)  # once, however many sessions there were
        atexit.register(_drop_all)
        # From its first step on the loop knows the generator, and closes it when it shuts down.
        await anext(found.keeper)
    return found.session


async def close_session() -> None:
    """Close the running loop's connections to providers; the next call opens new ones."""
    found = _sessions.pop(asyncio.get_running_loop(), None)
    if found is not None:
        await found.session.close()
        await found.keeper.aclose()


def _opened() -> _Open:
    # How many calls run at once is the runs' limit, not the pool's.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0)
    session = aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
    return _Open(session, connector, _keeper(session))


async def _keeper(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await session.close()


def _drop_all() -> None:
    while _sessions:
        _drop(_sessions.popitem()[1])


def _drop(left: _Open) -> None:
    """Close a session whose loop will not run again; nobody is left to be told of a failure."""
    if left.session.closed:
        return
    left.session.detach()
    # The generator is not finalised by a loop that is gone, only forgotten; a loop that still runs in a thread of its
    # own dies with the interpreter.
    with contextlib.suppress(RuntimeError):
        _close_now(left.connector)


def _close_now(connector: aiohttp.TCPConnector) -> None:
    closing = connector.close().__await__()
    with contextlib.suppress(StopIteration):
        next(closing)
