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

from headrace_agent.pacing import ReadPacer

CONNECT_SECONDS = 10.0
"""TCP and TLS to the provider; a host that is up answers in far less."""


EXIT_SECONDS = 1.0
"""For closing connections when the interpreter ends; they are idle and need no more than a TLS goodbye."""


@dataclass(frozen=True, slots=True)
class _Open:
    session: aiohttp.ClientSession
    connector: aiohttp.TCPConnector
    keeper: AsyncGenerator[None, None]
    pacer: ReadPacer


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


async def read_pacer() -> ReadPacer:
    """Return what reads the running loop's answers together."""
    await session()
    return _sessions[asyncio.get_running_loop()].pacer


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
    return _Open(session, connector, _keeper(session), ReadPacer(asyncio.get_running_loop()))


async def _keeper(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await session.close()


def _drop_all() -> None:
    """Close what is left when the interpreter ends; nobody is there to be told of a failure."""
    while _sessions:
        loop, left = _sessions.popitem()
        with contextlib.suppress(RuntimeError, TimeoutError, OSError):
            if loop.is_closed():
                _drop(left)
            elif loop.is_running():  # in a thread that dies with the interpreter
                asyncio.run_coroutine_threadsafe(left.session.close(), loop).result(EXIT_SECONDS)
            else:
                loop.run_until_complete(asyncio.wait_for(left.session.close(), EXIT_SECONDS))


def _drop(left: _Open) -> None:
    """Close the session of a closed loop, which takes its sockets with it: there is nothing to wait for."""
    if left.session.closed:
        return
    left.session.detach()
    closing = left.connector.close().__await__()
    with contextlib.suppress(StopIteration):
        next(closing)
