"""The outermost layer: a span for each request, and every error as problem+json.

Invariant: an error after the response began never looks like an end; the application returns without completing the
response, and the server breaks the connection.
"""

from __future__ import annotations

import structlog
from headrace_kit.errors import ServiceError
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_span_id, format_trace_id
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from api_gateway.domain import problem
from api_gateway.errors import MethodNotAllowed, RouteNotFound

log = structlog.get_logger("headrace.gateway")


class Edge:
    """The ASGI application: routes, inside a span, inside the error mapping."""

    def __init__(self, routes: list[Route]) -> None:
        self._routes = routes
        self._router = Router(routes, redirect_slashes=False)
        self._tracer = trace.get_tracer("headrace.gateway")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request; other protocols are not spoken."""
        if scope["type"] != "http":
            return
        scope["app"] = self  # tells the router to raise what it refuses
        parent = propagate.extract(Headers(scope=scope), context=Context())
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        span = self._tracer.start_span(scope["method"], context=parent, kind=SpanKind.SERVER, attributes=attributes)
        started = False

        async def send_traced(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _add_trace_headers(message, span)
                _end_span(span, scope, message["status"])
            await send(message)

        with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            try:
                await self._router(scope, receive, send_traced)
            except Exception as error:  # noqa: BLE001  # the edge: everything is mapped or logged here
                told = self._told(error, scope)
                if started:
                    log.error("response broken", path=scope["path"], reason=told.reason)
                    return
                await _send_problem(told, span, send_traced)

    def _told(self, error: Exception, scope: Scope) -> ServiceError:
        if isinstance(error, ServiceError):
            return error
        if isinstance(error, HTTPException) and error.status_code == 404:
            return RouteNotFound(f"no route {scope['path'][:200]!r}", reason="ROUTE_NOT_FOUND")
        if isinstance(error, HTTPException) and error.status_code == 405:
            # The router tells the methods of the first route with this path only.
            allow = sorted(
                {
                    method
                    for route in self._routes
                    if route.matches(scope)[0] is not Match.NONE
                    for method in route.methods or ()
                }
            )
            return MethodNotAllowed(
                f"{scope['method']} is not allowed here",
                reason="METHOD_NOT_ALLOWED",
                metadata={"allow": ", ".join(allow)},
            )
        log.error("request failed", path=scope["path"], exc_info=error)
        return ServiceError("internal error; the gateway's log has it", reason="INTERNAL")


def _end_span(span: Span, scope: Scope, status: int) -> None:
    # Here, not at the body's end: a stream of an hour is not an hour of work.
    route = scope.get("route")
    if isinstance(route, Route):
        span.update_name(f"{scope['method']} {route.path}")
        span.set_attribute("http.route", route.path)
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def _add_trace_headers(message: Message, span: Span) -> None:
    context = span.get_span_context()
    if context.is_valid:
        headers = MutableHeaders(scope=message)
        trace_id = format_trace_id(context.trace_id)
        headers["x-trace-id"] = trace_id
        headers["traceparent"] = f"00-{trace_id}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"


async def _send_problem(error: ServiceError, span: Span, send: Send) -> None:
    context = span.get_span_context()
    told = problem.describe(error, trace_id=format_trace_id(context.trace_id) if context.is_valid else "")
    span.set_attribute("error.type", error.reason)
    headers = {**told.headers, "content-length": str(len(told.body))}
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": told.status, "headers": raw})
    await send({"type": "http.response.body", "body": told.body})
