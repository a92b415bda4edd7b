"""Errors of this service, typed by what the caller can do; the kit maps them to gRPC statuses."""

from __future__ import annotations

from headrace_kit.errors import FailedPrecondition


class SandboxesUnavailable(FailedPrecondition):
    """No sandbox can be made here now; the message says why and what to do next."""

    def __init__(self, why: str, *, method: str) -> None:
        super().__init__(why, reason="SANDBOXES_UNAVAILABLE", metadata={"method": method})
