"""Identifiers: UUID v7 where we mint them, strict parsing where a client names one."""

from __future__ import annotations

from uuid import UUID

from uuid_utils.compat import uuid7

from headrace_kit.errors import NotFound


def new_id() -> UUID:
    """Return a new UUID v7."""
    return uuid7()


def parse_id(text: str, *, kind: str) -> UUID:
    """Return the UUID that `text` names.

    Raises NotFound: an id that cannot exist is answered like one that does not.
    """
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(
            f"{kind} {text[:64]!r} not found", reason=f"{kind.upper()}_NOT_FOUND", metadata={"id": text[:64]}
        ) from None
