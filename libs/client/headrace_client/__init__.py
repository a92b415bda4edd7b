"""HTTP client of Headrace and the headrace command.

with Client() as client:
    thread = client.create_thread()
    request = client.submit(thread["thread_id"], "What is 6 × 7?")
    for event in client.follow(request["run_id"]):
        print(event.event, event.data)
"""

from headrace_client.aio import AsyncClient
from headrace_client.client import Client
from headrace_client.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    HeadraceError,
    NotAuthenticated,
    NotConfigured,
    NotFound,
    RateLimited,
    ServerError,
    StreamCorrupt,
    StreamLost,
    Unreachable,
)
from headrace_client.following import Event

__all__ = [
    "AsyncClient",
    "BadRequest",
    "Client",
    "Conflict",
    "Event",
    "Forbidden",
    "HeadraceError",
    "NotAuthenticated",
    "NotConfigured",
    "NotFound",
    "RateLimited",
    "ServerError",
    "StreamCorrupt",
    "StreamLost",
    "Unreachable",
]
