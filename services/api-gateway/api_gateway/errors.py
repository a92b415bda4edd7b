"""Errors that only the HTTP edge knows, beside the kit's tree."""

from __future__ import annotations

from headrace_kit.errors import ServiceError


class BodyTooLarge(ServiceError):
    """The request's body is over the budget's `limits.body_bytes`; told as 413."""

    status = "BODY_TOO_LARGE"


class RouteNotFound(ServiceError):
    """No route has this path; told as 404."""

    status = "ROUTE_NOT_FOUND"


class MethodNotAllowed(ServiceError):
    """The path exists, not with this method; told as 405. `metadata["allow"]` lists the methods."""

    status = "METHOD_NOT_ALLOWED"
