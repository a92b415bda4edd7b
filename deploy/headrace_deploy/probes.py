"""Asks services whether they are ready, and finds the processes of a deployment."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_deploy.services import SPECS, STACK_MARK
from headrace_deploy.state import State

PROBE_SECONDS = 2.0
"""A service that does not answer a probe in this time is not ready."""


def ready(state: State, *, but: Collection[str] = ()) -> dict[str, str]:
    """Return what the probe of each service says, `ready` or why not, those in `but` left out; all at once."""
    asked = [spec for spec in SPECS if spec.name in state.services and spec.name not in but]
    with ThreadPoolExecutor(max_workers=max(1, len(asked))) as pool:
        answers = pool.map(lambda spec: _probe(spec.health, state.services[spec.name].address), asked)
        return {spec.name: answer for spec, answer in zip(asked, answers, strict=True)}


def _probe(kind: str, address: str) -> str:
    return {"grpc": _grpc, "http": _http, "tcp": _tcp}[kind](address)


def _grpc(address: str) -> str:
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stub lacks the methods
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_SECONDS, wait_for_ready=False)
        except grpc.RpcError as error:
            return "away" if error.code() == grpc.StatusCode.UNAVAILABLE else error.code().name.lower()
    return "ready" if answer.status == health_pb2.HealthCheckResponse.SERVING else "not serving"


def _http(address: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        return "away"
    finally:
        connection.close()
    return "ready" if response.status == http.HTTPStatus.OK else f"HTTP {response.status}"


def _tcp(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=PROBE_SECONDS):
            return "ready"
    except OSError:
        return "away"


def stack_processes(run_dir: Path) -> list[psutil.Process]:
    """Return the live processes that carry this deployment's mark: services, executors and what they started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(STACK_MARK) == str(run_dir):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return found
