"""Redis clients: one bounded pool per role and process, no Pub/Sub, no blocking reads."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

AWAY_ERRORS = (RedisError, OSError, TimeoutError)
"""What redis-py and the network raise when the server is away or refuses."""


def open_redis(url: str, *, max_connections: int, client_name: str) -> Redis:
    """Return a client whose pool opens at most `max_connections`, on demand; its name shows in CLIENT LIST.

    Commands wait at most 5 s for a connection and 5 s for an answer, and are never retried by the client.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=5,
        socket_timeout=5.0,
        socket_connect_timeout=2.0,
        client_name=client_name,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)  # owns the pool: aclose() closes its connections
