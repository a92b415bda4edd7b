from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson
import pytest
from headrace_agent import close_session
from headrace_kit.budget import Budget
from run_worker.adapters.graphs import Agent, builtin_file, load_graphs
from run_worker.domain.limits import TimeLimits
from run_worker.executor import run_figures

from tests.integration.run_worker_executor.harness import WAIT_SECONDS, World


@dataclass(frozen=True, slots=True)
class Provider:
    """The scripted provider, a process of its own."""

    url: str

    async def stats(self) -> dict[str, Any]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/stats") as answer:
            return dict(orjson.loads(await answer.read()))


@pytest.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Provider]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace_loadtest.provider", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().split()[-1]
    monkeypatch.setenv("HEADRACE_MODEL_BASE_URL", f"{url}/v1")
    monkeypatch.setenv("HEADRACE_MODEL_API_KEY", "none")
    monkeypatch.setenv("HEADRACE_MODEL_NAME", "scripted:first=0.02,rate=200")
    yield Provider(url)
    await close_session()
    process.terminate()
    await process.wait()


@pytest.fixture
async def assistant(provider: Provider) -> Agent:
    agents, errors = await load_graphs([builtin_file()])
    assert errors == []
    return agents["assistant"]


async def test_the_assistant_calls_a_tool_and_answers(world: World, assistant: Agent) -> None:
    """
    1. The model asks for a calculation, then answers in 30 tokens.
    2. The run completes; tokens, tool call and tool events were told once, usage is summed over both calls.
    """
    script = {"tool_calls": [{"name": "calculate", "args": {"expression": "6*7"}}], "then": {"tokens": 30}}
    made = await world.run(agent="assistant", text=f"compute\n#script {json.dumps(script)}")
    async with world.executor(assistant):
        row = await world.state_is(made, "completed", "failed")
        events = await world.event(made, "end")
    assert row["state"] == "completed", row["error"]
    tools = [event.data for event in events if event.event == "tool"]
    assert [(t["name"], t["phase"]) for t in tools] == [("calculate", "started"), ("calculate", "finished")]
    assert tools[1]["output"] == "42"
    transcript = await world.messages(made.thread_id)
    assert [m["role"] for m in transcript] == ["assistant", "tool", "assistant"]
    chunks = [e.data[0] for e in events if e.event == "messages" and e.data[0]["type"] == "AIMessageChunk"]
    answer = "".join(c["content"] for c in chunks if c["id"] == row["output_message_id"])
    assert answer == transcript[2]["content"]
    assert len(answer.split()) == 30
    args = "".join(piece["args"] for c in chunks for piece in c.get("tool_call_chunks", []))
    assert json.loads(args) == {"expression": "6*7"}
    usage = orjson.loads(row["usage"])
    assert usage["model_calls"] == 2
    assert usage["output_tokens"] > 0
    complete = [e.data[0]["type"] for e in events if e.event == "messages" and e.data[0]["type"] != "AIMessageChunk"]
    assert complete == ["tool"]


async def test_a_cancel_closes_the_models_socket(world: World, assistant: Agent, provider: Provider) -> None:
    """
    1. The model streams a long answer; a cancel is committed.
    2. The run is cancelled with its partial text, and the provider saw its client go.
    """
    made = await world.run(agent="assistant", text='talk\n#script {"tokens": 5000, "rate": 100}')
    async with world.executor(assistant):
        await world.event(made, "messages")
        await world.cancel(made, key=True)
        await world.state_is(made, "cancelled")
        [message] = await world.messages(made.thread_id)
        assert message["partial"]
        assert message["content"].startswith("tok0")
        async with asyncio.timeout(WAIT_SECONDS):
            while not (await provider.stats())["totals"]["disconnects"]:  # noqa: ASYNC110  # another process counts
                await asyncio.sleep(0.02)


async def test_a_silent_model_breaks_its_time_limit(world: World, assistant: Agent, budget: Budget) -> None:
    """
    1. The model stalls for ever after three tokens.
    2. The run fails with timeout, which: model_silence; what was said is kept as a partial message.
    """
    limits = TimeLimits(run=60, model_first_byte=60, model_silence=0.4, tool=60)
    figures = replace(run_figures(budget), limits=limits)
    made = await world.run(agent="assistant", text='talk\n#script {"tokens": 10, "stall_after": 3}')
    async with world.executor(assistant, figures=figures):
        row = await world.state_is(made, "failed", "completed")
    assert orjson.loads(row["error"])["details"] == {"which": "model_silence"}
    [message] = await world.messages(made.thread_id)
    assert message["partial"]
