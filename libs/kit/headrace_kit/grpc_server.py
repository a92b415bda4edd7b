"""A gRPC server with health, reflection, authentication, typed errors, trace spans and a drain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from headrace_kit.auth import TokenBook, caller_from_metadata, set_caller
from headrace_kit.errors import ServiceError, to_rpc_status

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Largest message either way: a 1 MiB event or body, several of them in a page, and room."""

_OPEN_PREFIXES = ("/grpc.health.", "/grpc.reflection.")
"""Methods without a token: probes and discovery say nothing about users."""

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]

log = structlog.get_logger("headrace.grpc")


class _Interceptor(grpc.aio.ServerInterceptor):
    """Authenticates, opens the span and maps errors, for unary calls and server streams alike."""

    def __init__(self, *, service_name: str, tokens: TokenBook | None) -> None:
        self._domain = f"{service_name}.headrace"
        self._tokens = tokens
        self._tracer = trace.get_tracer("headrace.grpc")

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None or details.method.startswith(_OPEN_PREFIXES):
            return handler
        method = details.method.removeprefix("/")
        metadata = tuple(details.invocation_metadata)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary, method, metadata),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream, method, metadata),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        return handler

    def _authenticate(self, metadata: tuple[Any, ...]) -> None:
        if self._tokens is not None:
            set_caller(caller_from_metadata(metadata, self._tokens))

    def _span(self, method: str, metadata: tuple[Any, ...]) -> Any:
        carrier = {key: value for key, value in metadata if isinstance(value, str)}
        service, _, name = method.partition("/")
        return self._tracer.start_as_current_span(
            method,
            context=propagate.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": name},
            record_exception=False,
            set_status_on_exception=False,
        )

    async def _abort(self, context: Any, error: Exception, method: str) -> None:
        span = trace.get_current_span()
        if isinstance(error, ServiceError):
            span.set_attribute("rpc.grpc.status_code", error.status)
            await context.abort_with_status(rpc_status.to_status(to_rpc_status(error, domain=self._domain)))
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        log.error("rpc failed", method=method, exc_info=error)
        told = ServiceError("internal error; the service's log has it", reason="INTERNAL")
        await context.abort_with_status(rpc_status.to_status(to_rpc_status(told, domain=self._domain)))

    def _unary(self, inner: Callable[[Any, Any], Awaitable[Any]], method: str, metadata: tuple[Any, ...]) -> Any:
        async def call(request: Any, context: Any) -> Any:
            with self._span(method, metadata):
                try:
                    self._authenticate(metadata)
                    return await inner(request, context)
                except grpc.aio.AbortError:
                    raise
                except Exception as error:  # noqa: BLE001  # the edge: everything is mapped or logged here
                    await self._abort(context, error, method)

        return call

    def _stream(self, inner: Callable[[Any, Any], AsyncIterator[Any]], method: str, metadata: tuple[Any, ...]) -> Any:
        # A coroutine that writes, not a generator: when a call is cancelled, grpc leaves a generator at its `yield` to
        # the garbage collector, which closes it in another context and at a time of its own.
        async def call(request: Any, context: Any) -> None:
            with self._span(method, metadata):
                try:
                    self._authenticate(metadata)
                    async with aclosing(inner(request, context)) as responses:  # type: ignore[type-var]  # a generator
                        async for response in responses:
                            await context.write(response)
                except grpc.aio.AbortError:
                    raise
                except Exception as error:  # noqa: BLE001  # the edge: everything is mapped or logged here
                    await self._abort(context, error, method)

        return call


class GrpcServer:
    """One listening server. Build it, `add` servicers, `start`, and `stop` it after its streams were told to end."""

    def __init__(self, *, service_name: str, listen: str, tokens: TokenBook | None) -> None:
        """Prepare a server; `tokens` None leaves it open, which only a loopback executor may."""
        self._listen = listen
        self._names = [health.SERVICE_NAME, reflection.SERVICE_NAME]
        self._server = grpc.aio.server(
            interceptors=[_Interceptor(service_name=service_name, tokens=tokens)], options=_OPTIONS
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.address = ""
        """host:port once started."""

    def add(self, register: Callable[[Any, Any], None], servicer: object, full_name: str) -> None:
        """Register a servicer with its generated `add_..._to_server` and its full proto name."""
        register(servicer, self._server)
        self._names.append(full_name)

    async def start(self) -> None:
        """Bind and serve, NOT_SERVING until `set_serving(True)`.

        Raises RuntimeError when the address is taken.
        """
        reflection.enable_server_reflection(self._names, self._server)
        host, _, _ = self._listen.rpartition(":")
        port = self._server.add_insecure_port(self._listen)
        if port == 0:
            raise RuntimeError(f"cannot listen on {self._listen}")
        self.address = f"{host}:{port}"
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Tell health checks, for the whole server and each of its services."""
        state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, state)

    async def stop(self, *, grace_seconds: float) -> None:
        """Refuse new calls and give those in flight `grace_seconds`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)
