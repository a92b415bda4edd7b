"""End to end over gRPC, as an internal service does it: with a service token and the generated stubs."""

from __future__ import annotations

import grpc
import httpx
import orjson
import pytest
from headrace.relay.v1 import relay_service_pb2, relay_service_pb2_grpc
from headrace.run.v1 import run_pb2, run_service_pb2, run_service_pb2_grpc
from headrace_kit.auth import call_metadata
from headrace_kit.grpc_client import open_channel

from tests.support.stack import Stack

pytestmark = pytest.mark.e2e


async def test_submit_follow_result_and_history(stack: Stack) -> None:
    """
    1. A service creates a thread and submits a message for a user.
    2. It follows the run over the relay to `end`.
    3. Result and history hold the answer.
    """
    metadata = call_metadata(stack.service_token("cli"), uid="grpc-user")
    async with (
        open_channel(stack.address("run-worker")) as run_channel,
        open_channel(stack.address("event-relay")) as relay_channel,
    ):
        runs = run_service_pb2_grpc.RunServiceStub(run_channel)
        relay = relay_service_pb2_grpc.RelayServiceStub(relay_channel)
        thread = await runs.CreateThread(
            run_service_pb2.CreateThreadRequest(agent="echo"), metadata=metadata, timeout=10
        )
        thread_id = thread.thread.thread_id
        answer = await runs.SubmitRequest(
            run_service_pb2.SubmitRequestRequest(
                thread_id=thread_id,
                input=orjson.dumps({"messages": [{"role": "user", "content": "over gRPC"}]}),
                idempotency_key="once",
            ),
            metadata=metadata,
            timeout=10,
        )
        run_id = answer.request.run_id
        names: list[str] = []
        async for response in relay.FollowRun(
            relay_service_pb2.FollowRunRequest(run_id=run_id), metadata=metadata, timeout=30
        ):
            names += [event.event for event in response.batch.events]
        assert names[0] in {"metadata", "queue"}
        assert names[-2:] == ["result", "end"]
        result = await runs.GetRunResult(
            run_service_pb2.GetRunResultRequest(run_id=run_id), metadata=metadata, timeout=10
        )
        assert result.run.state == run_pb2.Run.STATE_COMPLETED
        assert orjson.loads(result.output.content) == "over gRPC"
        history = await runs.ListMessages(
            run_service_pb2.ListMessagesRequest(thread_id=thread_id), metadata=metadata, timeout=10
        )
        assert [m.role for m in history.messages] == ["user", "assistant"]
        assert [run.run_id for run in history.runs] == [run_id]


async def test_another_token_and_another_user_are_refused(stack: Stack, http: httpx.AsyncClient) -> None:
    """
    1. Without a known service token a call is UNAUTHENTICATED.
    2. With one, another user's thread is NOT_FOUND.
    """
    thread = (await http.post("/v1/threads", json={"agent": "echo"})).json()
    wanted = run_service_pb2.GetThreadRequest(thread_id=thread["thread_id"])
    async with open_channel(stack.address("run-worker")) as channel:
        runs = run_service_pb2_grpc.RunServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await runs.GetThread(wanted, metadata=call_metadata("wrong", uid="local"), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await runs.GetThread(wanted, metadata=call_metadata(stack.service_token("cli"), uid="x"), timeout=10)
        assert missing.value.code() is grpc.StatusCode.NOT_FOUND
