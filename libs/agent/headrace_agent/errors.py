"""What goes wrong with a model, typed by what the caller can do. No text here ever holds a key.

ModelError
 +- ModelRefused        the provider said no: change the call, the key or the quota
 +- ModelUnavailable    the provider is away or broke off: try again
     +- ModelTimeout    it was silent for too long (`which`: first_byte or silence)
"""

from __future__ import annotations

from typing import Literal


class ModelError(Exception):
    """A call of a model failed."""


class ModelRefused(ModelError):
    """The provider refused the call: a 4xx status, a quota that stayed exhausted, or an error object in the answer.

    Attributes:
        status: HTTP status, or None when the refusal came inside a stream without one.
        reason: The provider's own code or type, such as `insufficient_quota`; empty when it gave none.
        retry_after_seconds: When the provider says to come back; None when it does not say.
    """

    def __init__(
        self, message: str, *, status: int | None, reason: str = "", retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class ModelUnavailable(ModelError):
    """The provider could not be reached, answered 5xx, or broke off; `status` is None without an answer."""

    def __init__(self, message: str, *, status: int | None = None, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds


class ModelTimeout(ModelUnavailable):
    """The provider sent nothing for too long, before the first piece (`first_byte`) or between two (`silence`)."""

    def __init__(self, message: str, *, which: Literal["first_byte", "silence"]) -> None:
        super().__init__(message)
        self.which: Literal["first_byte", "silence"] = which
