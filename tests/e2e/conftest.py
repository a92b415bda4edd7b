"""One whole product for all end-to-end tests, with a scripted model provider of its own and a user's graph folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.support.stack import Stack

OWN_GRAPH = """
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

model = ChatOpenAI(model="scripted")


async def answer(state: MessagesState) -> dict:
    return {"messages": [await model.ainvoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
builder.add_edge("answer", END)
graph = builder.compile()
"""


@pytest.fixture(scope="session")
def model_url() -> Iterator[str]:
    """Start the scripted provider; its address as an OpenAI base URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace_loadtest.provider", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert line[0] == "ready", line
    yield line[1].rstrip("/") + "/v1"
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    process.stdout.close()


@pytest.fixture(scope="session")
def own_graph(tmp_path_factory: pytest.TempPathFactory, model_url: str) -> Path:
    """Write the folder that a user brings: a langgraph.json and a ChatOpenAI graph that knows nothing of Headrace."""
    folder = tmp_path_factory.mktemp("own-graph")
    (folder / "graph.py").write_text(OWN_GRAPH)
    (folder / "langgraph.json").write_text(
        json.dumps(
            {
                "dependencies": ["."],
                "graphs": {"own": "./graph.py:graph"},
                "env": {"OPENAI_BASE_URL": model_url, "OPENAI_API_KEY": "none-needed"},
            }
        )
    )
    return folder / "langgraph.json"


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, model_url: str, own_graph: Path) -> Iterator[Stack]:
    """Start everything; stop everything."""
    running = Stack(
        tmp_path_factory.mktemp("stack"),
        extra_env={
            "HEADRACE_MODEL_BASE_URL": model_url,
            "HEADRACE_MODEL_API_KEY": "none-needed",
            "HEADRACE_MODEL_NAME": "scripted",
            "HEADRACE_LANGGRAPH_JSON": str(own_graph),
        },
    )
    running.up()
    yield running
    running.down()


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=stack.base_url, headers={"Authorization": f"Bearer {stack.api_key}"}, timeout=30
    ) as client:
        yield client


@pytest.fixture
async def admin(stack: Stack) -> AsyncIterator[asyncpg.Connection]:
    """A connection that sees every table."""
    connection = await asyncpg.connect(stack.dsn("migrate"))
    yield connection
    await connection.close()


@pytest.fixture
async def provider(model_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """The scripted provider's own pages: /stats, /reset."""
    async with httpx.AsyncClient(base_url=model_url.removesuffix("/v1")) as client:
        yield client


@pytest.fixture
def submit(http: httpx.AsyncClient) -> Callable[..., Any]:
    """Make a thread and submit one message; returns the Request."""

    async def call(text: str, *, agent: str = "assistant", thread_id: str | None = None, **body: Any) -> dict[str, Any]:
        if thread_id is None:
            made = await http.post("/v1/threads", json={"agent": agent})
            assert made.status_code == 201, made.text
            thread_id = made.json()["thread_id"]
        response = await http.post(f"/v1/threads/{thread_id}/requests", json={"message": text, **body})
        assert response.status_code == 202, response.text
        return dict(response.json())

    return call


async def ended(http: httpx.AsyncClient, run_id: str, *, seconds: float = 30) -> dict[str, Any]:
    """Return the run once it is terminal."""
    async with asyncio.timeout(seconds):
        while True:
            run = (await http.get(f"/v1/runs/{run_id}/wait", params={"timeout_seconds": 10})).json()
            if run["state"] in {"completed", "failed", "cancelled", "interrupted"}:
                return dict(run)


async def executor_pid(admin: asyncpg.Connection, run_id: str) -> int:
    """Return the process that holds the run's lease."""
    return int(
        await admin.fetchval(
            "SELECT e.pid FROM runs r JOIN executors e ON e.executor_id = r.lease_owner WHERE r.run_id = $1", run_id
        )
    )


def kill_9(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
