"""RunService: the servicer that the other modules of this folder make up."""

from __future__ import annotations

from headrace.run.v1 import run_service_pb2_grpc as rpc
from headrace_kit.grpc_server import GrpcServer

from run_worker.handlers.requests import RequestCalls
from run_worker.handlers.runs import RunCalls
from run_worker.handlers.support import Control
from run_worker.handlers.threads import ThreadCalls

FULL_NAME = "headrace.run.v1.RunService"


class RunService(ThreadCalls, RequestCalls, RunCalls, rpc.RunServiceServicer):
    """Threads, requests, runs and agents of the calling user."""

    def __init__(self, control: Control) -> None:
        ThreadCalls.__init__(self, control)
        RequestCalls.__init__(self, control)
        RunCalls.__init__(self, control)


def register(server: GrpcServer, control: Control) -> None:
    """Add RunService to a server."""
    server.add(rpc.add_RunServiceServicer_to_server, RunService(control), FULL_NAME)
