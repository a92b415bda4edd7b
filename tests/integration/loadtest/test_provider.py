"""The scripted provider over real HTTP: shapes, pace, faults, and what it counts."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

CALCULATE = [{"type": "function", "function": {"name": "calculate", "parameters": {}}}]


def request(text: str, *, model: str = "scripted", stream: bool = True, **rest: Any) -> dict[str, Any]:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}], **options, **rest}


async def chunks(model: httpx.AsyncClient, body: dict[str, Any], *, into: list[dict[str, Any]] | None = None) -> Any:
    """Read a streamed answer to its end; with `into`, what came before an error is kept."""
    found: list[dict[str, Any]] = [] if into is None else into
    async with model.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                return found
            if line:
                found.append(json.loads(line.removeprefix("data: ")))
    return found


def text_of(found: list[dict[str, Any]], field: str = "content") -> str:
    return "".join(c["choices"][0]["delta"].get(field) or "" for c in found if c.get("choices"))


async def stats(model: httpx.AsyncClient) -> Any:
    return (await model.get("/stats")).json()


async def until(model: httpx.AsyncClient, **totals: int) -> Any:
    """Poll the counters, since a closed socket is seen by the server a moment later."""
    async with asyncio.timeout(5):
        while True:
            now = await stats(model)
            if all(now["totals"][name] == value for name, value in totals.items()):
                return now
            await asyncio.sleep(0.01)


async def test_text_is_exact_and_paced(model: httpx.AsyncClient) -> None:
    """
    1. a script asks for 20 tokens, the first after 0.2 s, 50 a second
    2. the text is exact, roles, finish reason and usage are OpenAI's
    3. it took the ideal 0.6 s and no token was far behind its schedule
    """
    began = time.monotonic()
    found = await chunks(model, request('#script {"tokens":20,"first_s":0.2,"rate":50}'))
    took = time.monotonic() - began
    assert text_of(found) == " ".join(f"tok{i}" for i in range(20))
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    assert found[-2]["choices"][0]["finish_reason"] == "stop"
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == 20
    assert len({chunk["id"] for chunk in found}) == 1
    facts = (await stats(model))["last"][-1]
    assert facts["ideal_seconds"] == pytest.approx(0.6)
    assert facts["outcome"] == "completed"
    assert 0.59 <= took < 2.0  # the upper bound only tells a schedule from a drift on a busy machine


async def test_streams_do_not_drift_together(model: httpx.AsyncClient) -> None:
    """
    1. 30 streams of 50 tokens at 50 a second run at once
    2. each ends by its own schedule, 1.0 s, whatever the others do
    """
    body = request('#script {"tokens":50,"rate":50}')
    await asyncio.gather(*(chunks(model, body) for _ in range(30)))
    seconds = [facts["seconds"] for facts in (await stats(model))["last"]]
    assert len(seconds) == 30
    assert min(seconds) >= 0.99


async def test_tool_call_comes_in_fragments(model: httpx.AsyncClient) -> None:
    """
    1. a user asks for a product, and there is a tool for it
    2. the model reasons, then calls it with arguments in several fragments
    3. given the result, it answers with it
    """
    asked = await chunks(model, request("What is 6 × 7?", tools=CALCULATE))
    assert text_of(asked, "reasoning_content")
    fragments = [c["choices"][0]["delta"]["tool_calls"][0] for c in asked if _calls(c)]
    assert len(fragments) > 2
    assert json.loads("".join(f["function"]["arguments"] for f in fragments)) == {"expression": "6 * 7"}
    call_id = fragments[0]["id"]
    assert asked[-2]["choices"][0]["finish_reason"] == "tool_calls"
    body = request("What is 6 × 7?", tools=CALCULATE)
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [{"id": call_id}]},
        {"role": "tool", "tool_call_id": call_id, "content": "42"},
    ]
    assert "42" in text_of(await chunks(model, body))


def _calls(chunk: dict[str, Any]) -> bool:
    return bool(chunk["choices"] and chunk["choices"][0]["delta"].get("tool_calls"))


async def test_whole_answer_without_stream(model: httpx.AsyncClient) -> None:
    script = '#script {"reasoning":"hm","text":"yes","tool_calls":[{"name":"a","args":{"x":1}}]}'
    response = await model.post("/v1/chat/completions", json=request(script, stream=False))
    choice = response.json()["choices"][0]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("yes", "hm")
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
    assert choice["finish_reason"] == "tool_calls"


async def test_fails_the_first_times_then_answers(model: httpx.AsyncClient) -> None:
    """
    1. a script fails the first two requests of a conversation with 429
    2. these have Retry-After and OpenAI's error object
    3. the third is answered; another conversation has failures of its own
    """
    body = request('once\n#script {"text":"ok","status":429,"retry_after":1.5,"times":2}')
    for _ in range(2):
        refused = await model.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1.5")
        assert refused.json()["error"]["type"] == "rate_limit_error"
    assert text_of(await chunks(model, body)) == "ok"
    other = request('twice\n#script {"text":"ok","status":429,"times":1}')
    assert (await model.post("/v1/chat/completions", json=other)).status_code == 429


async def test_fails_always_without_times(model: httpx.AsyncClient) -> None:
    for _ in range(3):
        response = await model.post("/v1/chat/completions", json=request('#script {"status":500}'))
        assert response.status_code == 500
    assert (await stats(model))["totals"]["failures"] == 3


async def test_stalls_after_tokens_and_sees_the_client_go(model: httpx.AsyncClient) -> None:
    """
    1. a script falls silent after three tokens
    2. the client reads them, waits, and closes
    3. the provider counts one disconnect and no open stream
    """
    found: list[dict[str, Any]] = []
    body = request('#script {"tokens":10,"stall_after":3}')
    with pytest.raises(httpx.ReadTimeout):
        async with httpx.AsyncClient(base_url=model.base_url, timeout=0.3) as impatient:
            await chunks(impatient, body, into=found)
    assert text_of(found) == "tok0 tok1 tok2"
    now = await until(model, open_streams=0, disconnects=1)
    assert now["last"][-1]["outcome"] == "disconnected"


async def test_stalls_before_the_answer(model: httpx.AsyncClient) -> None:
    """
    1. a script takes the request and never answers
    2. the client gives up, which the provider sees
    """
    with pytest.raises(httpx.ReadTimeout):
        async with httpx.AsyncClient(base_url=model.base_url, timeout=0.3) as impatient:
            await impatient.post("/v1/chat/completions", json=request('#script {"stall":true}'))
    await until(model, open_streams=0, disconnects=1)


@pytest.mark.parametrize(
    ("fault", "outcome"), [("disconnect_after", "reset"), ("close_after", "closed")], ids=["reset", "close"]
)
async def test_breaks_the_connection_in_mid_stream(model: httpx.AsyncClient, fault: str, outcome: str) -> None:
    """
    1. a script breaks the connection after three tokens
    2. the client has read these three and then sees an error, not an end
    3. the provider does not count it as the client's doing
    """
    found: list[dict[str, Any]] = []
    error = httpx.ReadError if fault == "disconnect_after" else httpx.RemoteProtocolError
    with pytest.raises(error):
        await chunks(model, request(f'#script {{"tokens":10,"{fault}":3}}'), into=found)
    assert text_of(found) == "tok0 tok1 tok2"
    now = await until(model, open_streams=0, failures=1)
    assert (now["totals"]["disconnects"], now["last"][-1]["outcome"]) == (0, outcome)


async def test_error_object_inside_the_stream(model: httpx.AsyncClient) -> None:
    found = await chunks(model, request('#script {"tokens":10,"error_after":2}'))
    assert found[-1]["error"]["type"] == "server_error"
    assert text_of(found[:-1]) == "tok0 tok1"


async def test_split_bytes_cuts_characters(model: httpx.AsyncClient) -> None:
    """
    1. a script sends its answer in pieces of 7 bytes
    2. some pieces end inside an emoji; read together the text is whole
    """
    body = request('#script {"text":"a 😀 b 😀","split_bytes":7}')
    async with model.stream("POST", "/v1/chat/completions", json=body) as response:
        pieces = [piece async for piece in response.aiter_raw()]
    assert len(pieces) > 20
    lines = b"".join(pieces).decode().split("\n\n")
    found = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
    assert text_of(found) == "a 😀 b 😀"


async def test_large_burst_to_a_slow_reader_is_whole(model: httpx.AsyncClient) -> None:
    """
    1. a script sends 20,000 tokens at once
    2. the client reads nothing for a while, then all
    3. the text is exact
    """
    body = request('#script {"tokens":20000}')
    async with model.stream("POST", "/v1/chat/completions", json=body) as response:
        await asyncio.sleep(0.3)  # the client's pause is the scenario
        lines = [line async for line in response.aiter_lines() if line and "[DONE]" not in line]
    found = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert text_of(found) == " ".join(f"tok{i}" for i in range(20000))


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"{}", b'{"model":"scripted"}', b'{"model":"scripted","messages":[3]}'],
    ids=["cut", "array", "empty", "no messages", "no message"],
)
async def test_wrong_bodies_are_refused(model: httpx.AsyncClient, body: bytes) -> None:
    response = await model.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_unknown_script_field_is_named(model: httpx.AsyncClient) -> None:
    response = await model.post("/v1/chat/completions", json=request('#script {"tokns":3}'))
    assert response.status_code == 400
    assert "tokns" in response.json()["error"]["message"]


async def test_other_routes(model: httpx.AsyncClient) -> None:
    assert (await model.get("/healthz")).status_code == 200
    assert (await model.get("/v1/models")).json()["data"][0]["id"] == "scripted"
    assert (await model.get("/nowhere")).status_code == 404


async def test_closes_when_the_client_asks_for_it(provider_url: str) -> None:
    """
    1. a client sends `connection: close` and reads to the end of the connection
    2. it gets the whole stream, and the connection ends
    """
    address = httpx.URL(provider_url)
    body = json.dumps(request('#script {"tokens":3,"rate":50}')).encode()
    reader, writer = await asyncio.open_connection(address.host, address.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    async with asyncio.timeout(5):
        answer = await reader.read()
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    writer.close()


async def test_reset_keeps_open_streams(model: httpx.AsyncClient) -> None:
    """
    1. a stream is open while the counters are reset
    2. the counters say one open stream, then none
    """
    reading = asyncio.create_task(chunks(model, request('#script {"tokens":5,"rate":10}')))
    await until(model, open_streams=1)
    await model.post("/reset")
    assert (await stats(model))["totals"] | {"tokens": 0} == {
        "requests": 0,
        "open_streams": 1,
        "tokens": 0,
        "completed": 0,
        "failures": 0,
        "disconnects": 0,
    }
    await reading
    await until(model, open_streams=0)
