"""Every route: what it asks of run-worker, and the JSON that it answers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from google.protobuf.timestamp_pb2 import Timestamp
from headrace.run.v1 import run_pb2
from headrace.run.v1 import run_service_pb2 as pb

from tests.integration.api_gateway.conftest import House

AT = Timestamp(seconds=1_764_565_200, nanos=120_000_999)
AT_TEXT = "2025-12-01T05:00:00.120000Z"
RUN_ID = "0192f0c1-0000-7000-8000-00000000000a"

THREAD = run_pb2.Thread(
    thread_id="t1",
    agent="assistant",
    title="T",
    metadata=b'{"b":1,"a":[1.50]}',
    state=run_pb2.Thread.STATE_BUSY,
    active_run_id=RUN_ID,
    created_at=AT,
    updated_at=AT,
)
THREAD_JSON = (
    '{"thread_id":"t1","agent":"assistant","title":"T","metadata":{"b":1,"a":[1.50]},"state":"busy",'
    f'"active_run_id":"{RUN_ID}","latest_run_id":null,"created_at":"{AT_TEXT}","updated_at":"{AT_TEXT}"}}'
)
REQUEST = run_pb2.Request(
    request_id="q1",
    thread_id="t1",
    run_id=RUN_ID,
    agent="assistant",
    state=run_pb2.Request.STATE_QUEUED,
    multitask_strategy=run_pb2.MULTITASK_STRATEGY_ENQUEUE,
    wait=run_pb2.Wait(wait_reason="behind_run", since=AT, run_id="r0", position=2),
    created_at=AT,
    trace_id="ab" * 16,
    metadata=b"{}",
)
RUN = run_pb2.Run(
    run_id=RUN_ID,
    request_id="q1",
    thread_id="t1",
    agent="assistant",
    state=run_pb2.Run.STATE_FAILED,
    ordinal=3,
    attempt=2,
    faults=1,
    timing=run_pb2.Timing(created_at=AT, started_at=AT, dispatch_latency_ms=0, total_latency_ms=1234),
    error=run_pb2.RunError(type="timeout", message="m", details=b'{"which":"run"}'),
    usage=b'{"total_tokens":5}',
    cancel_requested_at=AT,
)
MESSAGE = run_pb2.Message(
    message_id="m1",
    role="assistant",
    content=b'[{"type":"text","text":"hi"}]',
    tool_calls=b'[{"id":"c"}]',
    partial=True,
    run_id=RUN_ID,
    request_id="q1",
    created_at=AT,
)


async def test_threads(house: House, client: httpx.AsyncClient) -> None:
    """
    1. A thread is created, read, listed, changed and deleted.
    2. run-worker is asked with exactly those values; JSON that it keeps as bytes comes back byte for byte.
    """
    answers = house.runs.answers
    answers["CreateThread"] = lambda _: pb.CreateThreadResponse(thread=THREAD)
    answers["GetThread"] = lambda _: pb.GetThreadResponse(thread=THREAD)
    answers["ListThreads"] = lambda _: pb.ListThreadsResponse(threads=[THREAD], next_page_token="n")
    answers["UpdateThread"] = lambda _: pb.UpdateThreadResponse(thread=THREAD)
    answers["DeleteThread"] = lambda _: pb.DeleteThreadResponse()

    made = await client.post(
        "/v1/threads", json={"title": "T", "metadata": {"a": 1}, "thread_id": "t1"}, headers={"idempotency-key": "k"}
    )
    assert (made.status_code, made.text) == (201, THREAD_JSON)
    assert made.headers["location"] == "/v1/threads/t1"
    assert made.headers["content-type"] == "application/json"
    assert made.headers["cache-control"] == "no-store"
    assert house.runs.last("CreateThread") == pb.CreateThreadRequest(
        agent="assistant", title="T", metadata=b'{"a":1}', idempotency_key="k", thread_id="t1"
    )
    assert (await client.post("/v1/threads")).status_code == 201
    assert house.runs.last("CreateThread").idempotency_key.startswith("http-")

    assert (await client.get("/v1/threads/t1")).text == THREAD_JSON
    listed = await client.get("/v1/threads?page_size=7&page_token=p")
    assert listed.text == f'{{"threads":[{THREAD_JSON}],"next_page_token":"n"}}'
    assert house.runs.last("ListThreads") == pb.ListThreadsRequest(page_size=7, page_token="p")

    assert (await client.patch("/v1/threads/t1", json={"title": ""})).status_code == 200
    assert house.runs.last("UpdateThread") == pb.UpdateThreadRequest(thread_id="t1", title="")
    assert (await client.patch("/v1/threads/t1", json={"metadata": {}})).status_code == 200
    assert house.runs.last("UpdateThread") == pb.UpdateThreadRequest(thread_id="t1", metadata=b"{}")

    gone = await client.delete("/v1/threads/t1")
    assert (gone.status_code, gone.content) == (204, b"")
    assert not house.runs.last("DeleteThread").cancel
    await client.delete("/v1/threads/t1?cancel=true")
    assert house.runs.last("DeleteThread").cancel


async def test_history_and_state(house: House, client: httpx.AsyncClient) -> None:
    """
    1. A transcript is listed with its runs, a thread's state read, agents listed.
    2. Messages have the shape of `snapshot` events, runs that of GET run.
    """
    answers = house.runs.answers
    answers["ListMessages"] = lambda _: pb.ListMessagesResponse(messages=[MESSAGE], runs=[RUN])
    answers["GetThreadState"] = lambda _: pb.GetThreadStateResponse(values=b'{"n":1}', next=["model"])
    answers["ListAgents"] = lambda _: pb.ListAgentsResponse(
        agents=[run_pb2.Agent(name="echo", input_schema=b'{"type":"object"}', digest="d", updated_at=AT)]
    )
    history = (await client.get("/v1/threads/t1/messages")).json()
    assert history["messages"] == [
        {
            "message_id": "m1",
            "role": "assistant",
            "content": [{"type": "text", "text": "hi"}],
            "reasoning": "",
            "tool_calls": [{"id": "c"}],
            "tool_call_id": "",
            "name": "",
            "partial": True,
            "run_id": RUN_ID,
            "request_id": "q1",
            "created_at": AT_TEXT,
        }
    ]
    assert [run["run_id"] for run in history["runs"]] == [RUN_ID]
    assert history["next_page_token"] is None
    assert (await client.get("/v1/threads/t1/state")).json() == {
        "values": {"n": 1},
        "next": ["model"],
        "checkpoint_id": None,
    }
    agents = (await client.get("/v1/agents")).json()["agents"]
    assert agents[0]["input_schema"] == {"type": "object"}
    assert agents[0]["output_schema"] == {}


async def test_requests(house: House, client: httpx.AsyncClient) -> None:
    """
    1. Input is submitted with every option, then as a short message; requests are read, listed, cancelled, continued.
    2. run-worker gets the JSON values and enums; the answers are 202 with the run's address, or 200.
    """
    answers = house.runs.answers
    answers["SubmitRequest"] = lambda asked: pb.SubmitRequestResponse(
        request=REQUEST, replayed=asked.idempotency_key == "seen"
    )
    answers["GetRequest"] = lambda _: pb.GetRequestResponse(request=REQUEST)
    answers["ListRequests"] = lambda _: pb.ListRequestsResponse(requests=[REQUEST])
    cancelled_request = run_pb2.Request(request_id="q1", state=run_pb2.Request.STATE_CANCELLED)
    answers["CancelRequest"] = lambda _: pb.CancelRequestResponse(request=cancelled_request)
    answers["ContinueThread"] = lambda _: pb.ContinueThreadResponse(request=REQUEST)

    body = {
        "input": {"messages": [{"role": "user", "content": "hi \u0000"}]},
        "multitask_strategy": "reject",
        "config": {"recursion_limit": 7},
        "context": {"x": None},
        "stream_modes": ["updates", "custom"],
        "stream_subgraphs": True,
        "durability": "sync",
        "metadata": {"m": 1},
    }
    done = await client.post("/v1/threads/t1/requests", json=body, headers={"idempotency-key": "k1"})
    assert done.status_code == 202
    assert done.headers["location"] == f"/v1/runs/{RUN_ID}"
    assert "idempotency-replayed" not in done.headers
    assert done.json() == {
        "request_id": "q1",
        "thread_id": "t1",
        "run_id": RUN_ID,
        "agent": "assistant",
        "state": "queued",
        "multitask_strategy": "enqueue",
        "wait": {"wait_reason": "behind_run", "since": AT_TEXT, "run_id": "r0", "position": 2},
        "created_at": AT_TEXT,
        "dispatched_at": None,
        "trace_id": "ab" * 16,
        "metadata": {},
    }
    assert house.runs.last("SubmitRequest") == pb.SubmitRequestRequest(
        thread_id="t1",
        input=b'{"messages":[{"role":"user","content":"hi \\u0000"}]}',
        idempotency_key="k1",
        multitask_strategy=run_pb2.MULTITASK_STRATEGY_REJECT,
        config=b'{"recursion_limit":7}',
        context=b'{"x":null}',
        stream_modes=["updates", "custom"],
        stream_subgraphs=True,
        durability="sync",
        metadata=b'{"m":1}',
    )
    short = await client.post("/v1/threads/t1/requests", json={"message": "hi"}, headers={"idempotency-key": "seen"})
    assert short.headers["idempotency-replayed"] == "true"
    asked = house.runs.last("SubmitRequest")
    assert asked.input == b'{"messages":[{"role":"user","content":"hi"}]}'
    assert asked.multitask_strategy == run_pb2.MULTITASK_STRATEGY_UNSPECIFIED
    assert (asked.config, asked.context, asked.metadata) == (b"", b"", b"")

    assert (await client.get("/v1/requests/q1")).json()["wait"]["position"] == 2
    assert len((await client.get("/v1/threads/t1/requests")).json()["requests"]) == 1
    cancelled = await client.post("/v1/requests/q1/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    continued = await client.post("/v1/threads/t1/continue")
    assert (continued.status_code, continued.json()["request_id"]) == (202, "q1")


async def test_runs(house: House, client: httpx.AsyncClient) -> None:
    """
    1. Runs are read, listed by states, cancelled; a result is read after and before the end.
    2. The run has every recorded time and latency by its fixed name, null where missing.
    """
    answers = house.runs.answers
    answers["GetRun"] = lambda _: pb.GetRunResponse(run=RUN)
    answers["ListRuns"] = lambda _: pb.ListRunsResponse(runs=[RUN], next_page_token="n")
    answers["CancelRun"] = lambda _: pb.CancelRunResponse(run=RUN)
    answers["GetRunResult"] = lambda asked: (
        pb.GetRunResultResponse(run=RUN, output=MESSAGE)
        if asked.run_id == RUN_ID
        else pb.GetRunResultResponse(run=run_pb2.Run(state=run_pb2.Run.STATE_RUNNING), values=b"")
    )
    run = (await client.get(f"/v1/runs/{RUN_ID}")).json()
    assert run == {
        "run_id": RUN_ID,
        "request_id": "q1",
        "thread_id": "t1",
        "agent": "assistant",
        "state": "failed",
        "ordinal": 3,
        "attempt": 2,
        "faults": 1,
        "wait": None,
        "cancel_requested_at": AT_TEXT,
        "timing": {
            "created_at": AT_TEXT,
            "started_at": AT_TEXT,
            "prepared_at": None,
            "first_output_at": None,
            "finished_at": None,
            "dispatch_latency_ms": 0,
            "preparation_latency_ms": None,
            "model_first_output_latency_ms": None,
            "first_output_latency_ms": None,
            "total_latency_ms": 1234,
        },
        "error": {"type": "timeout", "message": "m", "details": {"which": "run"}},
        "output_message_id": None,
        "usage": {"total_tokens": 5},
        "interrupts": [],
        "runtime_cleanup_pending": False,
        "trace_id": None,
        "metadata": {},
    }
    listed = await client.get("/v1/runs?thread_id=t1&state=running,failed&state=queued")
    assert listed.json()["runs"] == [run]
    assert list(house.runs.last("ListRuns").states) == [3, 5, 1]
    assert house.runs.last("ListRuns").thread_id == "t1"
    cancelled = await client.post(f"/v1/runs/{RUN_ID}/cancel")
    assert (cancelled.status_code, cancelled.json()["cancel_requested_at"]) == (202, AT_TEXT)
    ended = (await client.get(f"/v1/runs/{RUN_ID}/result")).json()
    assert (ended["run"], ended["output"]["message_id"], ended["values"]) == (run, "m1", None)
    early = (await client.get("/v1/runs/other/result")).json()
    assert (early["run"]["state"], early["output"]) == ("running", None)


async def test_wait(house: House, client: httpx.AsyncClient) -> None:
    """
    1. A wait names its time, or not; run-worker is asked for as long, with a deadline beyond.
    2. A client that goes away ends run-worker's call at once.
    """
    house.runs.answers["WaitRun"] = lambda _: pb.WaitRunResponse(run=RUN)
    assert (await client.get(f"/v1/runs/{RUN_ID}/wait?timeout_seconds=1.5")).json()["state"] == "failed"
    assert house.runs.last("WaitRun").timeout.ToMilliseconds() == 1500
    await client.get(f"/v1/runs/{RUN_ID}/wait")
    assert house.runs.last("WaitRun").timeout.ToMilliseconds() == 30_000

    waiting, ended = asyncio.Event(), asyncio.Event()

    async def wait(_request: Any) -> Any:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    house.runs.answers["WaitRun"] = wait
    async with house.client() as other:
        call = asyncio.create_task(other.get(f"/v1/runs/{RUN_ID}/wait?timeout_seconds=60"))
        await waiting.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    async with asyncio.timeout(2):
        await ended.wait()
