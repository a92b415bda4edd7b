"""HTTP connections to model providers: one pool per event loop, kept while the loop lives."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from weakref import WeakKeyDictionary

import aiohttp

CONNECT_SECONDS = 10.0
"""TCP and TLS to the provider; a host that is up answers in far less."""

# One pool of connections per event loop, which is what an HTTP session belongs to. Filled by use, never at import.
_sessions: MutableMapping[asyncio.AbstractEventLoop, aiohttp.ClientSession] = WeakKeyDictionary()


def session() -> aiohttp.ClientSession:
    """Return the running loop's session, opened if there is none."""
    loop = asyncio.get_running_loop()
    found = _sessions.get(loop)
    if found is None or found.closed:
        # A session refers to its loop, so those of loops that are closed do not go by themselves.
        for closed in [other for other in _sessions if other.is_closed()]:
            del _sessions[closed]
        found = aiohttp.ClientSession(
            # How many calls run at once is the runs' limit, not the pool's.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        _sessions[loop] = found
    return found


async def close_session() -> None:
    """Close the running loop's connections to providers; the next call opens new ones."""
    found = _sessions.pop(asyncio.get_running_loop(), None)
    if found is not None:
        await found.close()
