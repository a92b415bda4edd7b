"""What the handlers of RunService share: their dependencies, the caller, and the edge where input errors are mapped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from headrace_kit.auth import require_user
from headrace_kit.errors import InvalidArgument
from headrace_kit.postgres import Database

from run_worker.adapters.aftermath import Aftermath
from run_worker.adapters.intake import Limits
from run_worker.domain.inputs import InputError
from run_worker.domain.pages import PageTokenError

BAD_INPUT: Final = "INVALID_INPUT"
"""Reason of every INVALID_ARGUMENT whose field says what to change."""


class Waits(Protocol):
    """Waits for ends together with all other waiters of the process."""

    async def wait(self, run_id: UUID, *, seconds: float) -> bool:
        """Return whether the run is terminal, after `seconds` at most."""
        ...


@dataclass(frozen=True, slots=True)
class Control:
    """What handlers work with; made once by the composition root."""

    database: Database
    """Role control."""
    graph_read: Database
    """Role graph_read."""
    aftermath: Aftermath
    waits: Waits
    limits: Limits
    body_bytes: int
    """Most bytes of input, config, context and metadata together."""


@contextmanager
def checked() -> Iterator[None]:
    """Turn an InputError into INVALID_ARGUMENT that names the field."""
    try:
        yield
    except PageTokenError as error:
        raise InvalidArgument(
            str(error), reason="PAGE_TOKEN_INVALID", field=error.field, metadata={"field": error.field}
        ) from None
    except InputError as error:
        raise InvalidArgument(
            str(error), reason=BAD_INPUT, field=error.field, metadata={"field": error.field}
        ) from None


def check_size(size: int, *, limit: int, field: str) -> None:
    """Check what a call would store.

    Raises InvalidArgument over `limit` bytes.
    """
    if size > limit:
        raise InvalidArgument(
            f"the body has {size} bytes, the limit is {limit}",
            reason="BODY_TOO_LARGE",
            field=field,
            metadata={"bytes": str(size), "limit": str(limit)},
        )


def user() -> str:
    """Return the user that the call acts for.

    Raises Unauthenticated without one, InvalidArgument for a name that PostgreSQL cannot hold.
    """
    uid = require_user()
    if "\x00" in uid:
        raise InvalidArgument("the user's name holds a NUL character", reason=BAD_INPUT, field="x-headrace-user")
    return uid
