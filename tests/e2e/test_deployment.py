"""`up` and `down` of the whole product: what is kept, what is restarted, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest
from headrace_deploy import probes
from headrace_deploy.processes import is_alive
from headrace_deploy.stack import StackError
from headrace_kit.settings import SettingsError

from tests.e2e.sse import frames
from tests.support.stack import Stack

# Several starts of the whole product in one test: seconds each when alone, three times that on a busy machine.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


FIVE_SECONDS = '#script {"tokens": 200, "rate": 40}'

GRAPH_THAT_READS_THE_MODEL = """
import os

from langgraph.graph import END, START, MessagesState, StateGraph

assert os.environ["HEADRACE_MODEL_BASE_URL"].startswith("http://")
assert os.environ["HEADRACE_MODEL_NAME"] and os.environ["HEADRACE_MODEL_API_KEY"]
builder = StateGraph(MessagesState)
builder.add_node("nothing", lambda state: {})
builder.add_edge(START, "nothing")
builder.add_edge("nothing", END)
graph = builder.compile()
"""


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[Stack]:
    """A stack of the test's own, down at its end whatever happened."""
    stack = Stack(tmp_path / "run")
    yield stack
    await asyncio.to_thread(stack.down)


async def eventually(condition: Callable[[], Any], *, seconds: float = 30) -> Any:
    """Return the first true value of `condition`: the lives of other processes give no event to wait for."""
    async with asyncio.timeout(seconds):
        while True:
            if found := await asyncio.to_thread(condition):
                return found
            await asyncio.sleep(0.05)


def everything(stack: Stack) -> list[psutil.Process]:
    """Every process of the deployment: supervisor, services, executors, servers."""
    state = stack.state
    references = (state.supervisor, *(server.process for server in (state.postgres, state.redis) if server))
    found = [reference.find() for reference in references if reference]
    return [*stack.processes(), *(process for process in found if process)]


def status_of(url: str, key: str) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


async def test_up_and_down_twice_leaves_nothing_and_keeps_what_must_stay(own: Stack) -> None:
    """
    1. Up: all are ready, and the first key opens the API; another does not.
    2. A second up changes nothing: same processes.
    3. Down ends every process, the servers too.
    4. Up again: address, key and passwords are the same. Down again, and once more is no mistake.
    """
    first = await asyncio.to_thread(own.up)
    assert status_of(f"{own.base_url}/v1/agents", own.api_key) == 200
    assert status_of(f"{own.base_url}/v1/agents", "hr_0_0") == 401
    pids = own.pids()

    await asyncio.to_thread(own.up)
    assert own.pids() == pids
    assert "already up" in own.said

    processes = everything(own)
    assert {process.pid for process in processes} >= set(pids.values())
    assert await asyncio.to_thread(own.down)
    assert [process for process in processes if is_alive(process)] == []

    second = await asyncio.to_thread(own.up)
    assert (second.base_url, second.api_key, second.passwords) == (first.base_url, first.api_key, first.passwords)
    processes = everything(own)
    assert await asyncio.to_thread(own.down)
    assert [process for process in processes if is_alive(process)] == []
    assert not await asyncio.to_thread(own.down)


async def test_what_is_killed_comes_back_and_a_killed_supervisor_takes_all_with_it(own: Stack) -> None:
    """
    1. Each service is killed with -9; each comes back in a new process and is ready.
    2. The supervisor is killed with -9: no service and no executor outlives it for long.
    3. Up repairs that without a down between.
    """
    await asyncio.to_thread(own.up)
    before = own.pids()
    for service in before:
        own.kill(service, signal.SIGKILL)
    await eventually(lambda: set(own.pids()) == set(before) and not set(own.pids().values()) & set(before.values()))
    await eventually(lambda: set(probes.ready(own.state).values()) == {"ready"})
    assert {service.restarts for service in own.state.services.values()} == {1}

    supervisor = own.state.supervisor
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    await eventually(lambda: not own.processes())

    await asyncio.to_thread(own.up)
    assert set(own.pids()) == set(before)


async def test_a_run_ends_while_its_deployment_stops_and_up_waits_for_that(own: Stack) -> None:
    """
    1. A run that takes 5 s is at work; the supervisor is told to stop.
    2. Up says that it waits, and starts everything anew once the run has ended.
    3. The run was completed by its first attempt: it was neither handed back nor did it lose its model.
    """
    await asyncio.to_thread(own.up)
    before = own.pids()
    supervisor = own.state.supervisor
    assert supervisor is not None
    async with httpx.AsyncClient(
        base_url=own.base_url, headers={"Authorization": f"Bearer {own.api_key}"}, timeout=30
    ) as http:
        thread = (await http.post("/v1/threads", json={"agent": "assistant"})).json()["thread_id"]
        request = (await http.post(f"/v1/threads/{thread}/requests", json={"message": FIVE_SECONDS})).json()
        run = f"/v1/runs/{request['run_id']}"
        async with http.stream("GET", f"{run}/events") as response:
            async for frame in frames(response):
                if frame.event == "messages":
                    break

        os.kill(supervisor.pid, signal.SIGTERM)
        await eventually(lambda: own.state.stopping)
        state = await asyncio.to_thread(own.up)

        assert [line for line in own.said if line.startswith("it is still stopping")]
        assert set(own.pids()) == set(before)
        assert not set(own.pids().values()) & set(before.values())
        assert set(probes.ready(state).values()) == {"ready"}
        ended = (await http.get(run)).json()
    assert (ended["state"], ended["attempt"], ended["faults"]) == ("completed", 1, 0)


async def test_a_revoked_first_key_is_told_and_replaced(own: Stack) -> None:
    """
    1. The first key of a live stack is revoked. 2. A second up says so and what makes a new one.
    3. After down, up mints one and says so; it opens the API, the old one does not, and it stays the next time.
    """
    old = (await asyncio.to_thread(own.up)).api_key
    connection = await asyncpg.connect(own.dsn("migrate"))
    await connection.execute("UPDATE api_keys SET revoked_at = now() WHERE key_id = 'first'")
    await connection.close()
    await asyncio.to_thread(own.up)
    assert own.said[-1] == "the first API key was revoked; `make down && make up` makes a new one"

    await asyncio.to_thread(own.down)
    await asyncio.to_thread(own.up)
    assert "the first API key was revoked; a new one takes its place" in own.said
    assert own.api_key != old
    assert status_of(f"{own.base_url}/v1/agents", own.api_key) == 200
    assert status_of(f"{own.base_url}/v1/agents", old) == 401


async def test_changed_settings_are_refused_and_forgotten_graphs_are_told(own: Stack, tmp_path: Path) -> None:
    """
    1. Up with a graph that reads the model's variables when it is loaded: it is served.
    2. Up again with another value: refused, named, nothing changed; with fewer variables: no matter.
    3. Down, then up without the graphs: a line says that they are not served.
    """
    (tmp_path / "graph.py").write_text(GRAPH_THAT_READS_THE_MODEL)
    (tmp_path / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"own": "./graph.py:graph"}}')
    graphs = {"HEADRACE_LANGGRAPH_JSON": str(tmp_path / "langgraph.json")}
    configured = own.configured(**graphs)
    await asyncio.to_thread(configured.up)
    pids = own.pids()

    with pytest.raises(StackError, match=r"already up with other settings: HEADRACE_EXECUTORS; run `make down` first"):
        await asyncio.to_thread(own.configured(**graphs, HEADRACE_EXECUTORS="7").up)
    await asyncio.to_thread(own.up)
    assert own.pids() == pids

    await asyncio.to_thread(configured.down)
    await asyncio.to_thread(own.up)
    assert [line for line in own.said if line.startswith("the last start had HEADRACE_LANGGRAPH_JSON=")]


async def test_wrong_settings_start_nothing(own: Stack) -> None:
    """1. Two variables are wrong. 2. Both are told at once; not even the folder is made."""
    with pytest.raises(SettingsError, match=r"HEADRACE_EXECUTORS: .*\nHEADRACE_PORT: "):
        await asyncio.to_thread(own.configured(HEADRACE_EXECUTORS="0", HEADRACE_PORT="abc").up)
    assert not own.run_dir.exists()


async def test_the_commands_tell_what_is(own: Stack) -> None:
    """1. `status` and `doctor` of a live stack exit 0. 2. A service is stopped (-STOP): both exit 1 and name it."""
    await asyncio.to_thread(own.up)

    def call(command: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "headrace_deploy.commands", command],
            env=os.environ | {"HEADRACE_RUN_DIR": str(own.run_dir), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    for command in ("status", "doctor"):
        code, text = await asyncio.to_thread(call, command)
        assert code == 0, text
        assert "event-relay" in text
        assert own.api_key not in text
    own.kill("event-relay", signal.SIGSTOP)
    try:
        for command in ("status", "doctor"):
            code, text = await asyncio.to_thread(call, command)
            assert code == 1, text
            assert "headrace logs event-relay" in text
    finally:
        own.kill("event-relay", signal.SIGCONT)


async def test_a_service_that_cannot_start_is_told_with_its_own_words(tmp_path: Path) -> None:
    """1. A setting is wrong. 2. Up fails soon, shows the service's own message, and leaves nothing running."""
    stack = Stack(tmp_path / "run", extra_env={"HEADRACE_LOG_LEVEL": "LOUD"})
    with pytest.raises(StackError, match=r"does not start(.|\n)*HEADRACE_LOG_LEVEL"):
        await asyncio.to_thread(stack.up)
    assert everything(stack) == []
