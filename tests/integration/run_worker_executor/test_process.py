from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import grpc
import pytest
from headrace.executor.v1 import executor_service_pb2 as pb
from headrace.executor.v1 import executor_service_pb2_grpc as rpc
from headrace_kit.auth import call_metadata, sha256_hex
from headrace_kit.ids import new_id

from tests.integration.run_worker_executor.harness import WAIT_SECONDS, World

GRAPH = """
import asyncio
import os
import pathlib
import subprocess
import sys
import time
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

FOLDER = pathlib.Path(__file__).parent


def note(name):
    with (FOLDER / name).open("a") as file:
        file.write("x")


async def first(state):
    note("first")
    return {"messages": [AIMessage("first", id="first")]}


async def second(state):
    note("second")
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.02)
    return {"messages": [AIMessage(f"saw {len(state['messages'])}", id="second")]}


def together(state):
    note("met-" + str(state["messages"][-1].content))
    while len(list(FOLDER.glob("met-*"))) < 10:
        time.sleep(0.02)


def stuck(state):
    note("stuck")
    time.sleep(3600)


async def leave(state):
    sys.exit(3)


def leave_thread(state):
    raise KeyboardInterrupt("no more")


def choose(state):
    text = state["messages"][-1].content
    if text == "edge":
        sys.exit("at an edge")
    return "leave_thread" if text == "thread" else "leave"


async def busy(state):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    other = subprocess.Popen(["sleep", "60"], close_fds=False)
    (FOLDER / "pids").write_text(f"{child} {other.pid}")
    note("busy")
    time.sleep(3600)


quitting = StateGraph(MessagesState).add_node(leave).add_node(leave_thread).add_conditional_edges(START, choose)
forking = StateGraph(MessagesState).add_node(busy).add_edge(START, "busy")
meeting = StateGraph(MessagesState).add_node(together).add_edge(START, "together")
endless = StateGraph(MessagesState).add_node(stuck).add_edge(START, "stuck")
graph = StateGraph(MessagesState).add_node(first).add_node(second)
graph.add_edge(START, "first").add_edge("first", "second")
"""


@dataclass(slots=True)
class Child:
    """An executor process and the write end of its control pipe."""

    executor_id: UUID
    process: asyncio.subprocess.Process
    pipe: int | None
    said: Path
    """Its standard error. No pipe, which children of its own would hold open."""

    def close_pipe(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "graph.py").write_text(GRAPH)
    (tmp_path / "langgraph.json").write_text(
        json.dumps(
            {
                "dependencies": ["."],
                "graphs": {
                    "two": "./graph.py:graph",
                    **{name: f"./graph.py:{name}" for name in ("meeting", "endless", "quitting", "forking")},
                },
                "headrace": {"agents": {"two": {"durability": "sync"}}},
            }
        )
    )
    (tmp_path / "tokens.json").write_text(json.dumps({"run-worker": sha256_hex("token")}))
    return tmp_path


@asynccontextmanager
async def executor_process(
    world: World, redis_url: str, budget_path: Path, folder: Path, *, passed: tuple[int, ...] = ()
) -> AsyncIterator[Child]:
    read_end, write_end = os.pipe()
    executor_id = new_id()
    environment = {
        **os.environ,
        "HEADRACE_BUDGET_FILE": str(budget_path),
        "HEADRACE_TOKENS_FILE": str(folder / "tokens.json"),
        "HEADRACE_SERVICE_TOKEN": "token",
        "HEADRACE_DATA_DIR": str(folder),
        "HEADRACE_REDIS_URL": redis_url,
        "HEADRACE_EXECUTOR_DSN": world.dsns.dsn("executor"),
        "HEADRACE_GRAPH_DSN": world.dsns.dsn("graph"),
        "HEADRACE_LANGGRAPH_JSON": str(folder / "langgraph.json"),
        "HEADRACE_CONTROL_FD": str(read_end),
        "HEADRACE_CONTROL_ID": str(new_id()),
        "HEADRACE_EXECUTOR_ID": str(executor_id),
        "HEADRACE_SLOTS": "10",
    }
    said = folder / f"stderr-{executor_id}"
    with said.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", "from run_worker.executor import main; main()"),
            pass_fds=(read_end, *passed),
            env=environment,
            stderr=stderr,
        )
    os.close(read_end)
    child = Child(executor_id, process, write_end, said)
    try:
        yield child
    finally:
        child.close_pipe()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def appears(path: Path) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not path.exists():  # noqa: ASYNC110, ASYNC240  # another process makes it
            await asyncio.sleep(0.02)


async def test_kill_9_in_mid_run_applies_the_input_once(
    world: World, redis_url: str, budget_path: Path, folder: Path
) -> None:
    """
    1. An executor process is inside the second node of a run when it is killed with SIGKILL.
    2. Its lease expires; a second executor takes the run over, after one TTL in touch with PostgreSQL.
    3. The run completes as attempt 2 with one fault: the first node ran once and the input is in the state once.
    """
    made = await world.run(agent="two")
    async with executor_process(world, redis_url, budget_path, folder) as child:
        await appears(folder / "second")
        child.process.send_signal(signal.SIGKILL)
        await child.process.wait()
    await world.control.execute(
        "UPDATE executors SET lease_expires_at = now() WHERE executor_id = $1", child.executor_id
    )
    (folder / "go").touch()
    async with executor_process(world, redis_url, budget_path, folder):
        row = await world.state_is(made, "completed", "failed")
        events = await world.event(made, "end")
    assert row["state"] == "completed", row["error"]
    assert (row["attempt"], row["faults"]) == (2, 1)
    assert (folder / "first").read_text() == "x"
    assert (folder / "second").read_text() == "xx"
    assert [m["content"] for m in await world.messages(made.thread_id)] == ["first", "saw 2"]
    assert [str(e.id) for e in events if e.id.attempt == 2][:2] == ["2-1", "2-2"]


async def test_the_process_serves_drains_and_exits_cleanly(
    world: World, redis_url: str, budget_path: Path, folder: Path
) -> None:
    """
    1. An executor process publishes its agents, answers Describe to those who know a token, and holds a run.
    2. Control is gone (end of file on the pipe).
    3. The run is handed back without a fault, and the process ends with code 0.
    """
    made = await world.run(agent="two")
    async with executor_process(world, redis_url, budget_path, folder) as child:
        await appears(folder / "second")
        names = [row["name"] for row in await world.control.fetch("SELECT name FROM agents ORDER BY name")]
        assert names == ["assistant", "echo", "endless", "forking", "meeting", "quitting", "two"]
        address = await world.control.fetchval(
            "SELECT address FROM executors WHERE executor_id = $1", child.executor_id
        )
        async with grpc.aio.insecure_channel(address) as channel:
            stub = rpc.ExecutorServiceStub(channel)
            described = await stub.Describe(pb.DescribeRequest(), metadata=call_metadata("token"), timeout=5)
            assert (described.free_slots, list(described.run_ids)) == (9, [str(made.run_id)])
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Describe(pb.DescribeRequest(), metadata=call_metadata("wrong"), timeout=5)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        child.close_pipe()
        assert await asyncio.wait_for(child.process.wait(), WAIT_SECONDS) == 0
    row = await world.row(made.run_id)
    assert (row["state"], row["faults"], row["lease_owner"]) == ("pending", 0, None)
    outcome = await world.control.fetchval("SELECT outcome FROM attempts WHERE run_id = $1", made.run_id)
    assert outcome == "handed_back"


async def test_sigterm_lets_a_short_run_end(world: World, redis_url: str, budget_path: Path, folder: Path) -> None:
    """
    1. An executor process holds a run when SIGTERM comes.
    2. The run ends within the drain: it is completed, and the process ends with code 0.
    """
    made = await world.run(agent="two")
    async with executor_process(world, redis_url, budget_path, folder) as child:
        await appears(folder / "second")
        child.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_SECONDS):
            sql = "SELECT draining_at IS NOT NULL FROM executors WHERE executor_id = $1"
            while not await world.control.fetchval(sql, child.executor_id):  # noqa: ASYNC110  # another process does it
                await asyncio.sleep(0.02)
        (folder / "go").touch()
        assert await asyncio.wait_for(child.process.wait(), WAIT_SECONDS) == 0
    assert (await world.row(made.run_id))["state"] == "completed"


async def test_as_many_synchronous_nodes_run_as_there_are_slots(
    world: World, redis_url: str, budget_path: Path, folder: Path
) -> None:
    """
    1. Ten runs fill the slots of an executor process; each is in a synchronous node that waits for the nine others.
    2. All complete.
    """
    made = [await world.run(agent="meeting", text=str(number)) for number in range(10)]
    async with executor_process(world, redis_url, budget_path, folder):
        for one in made:
            assert (await world.state_is(one, "completed", "failed"))["state"] == "completed"


async def test_a_node_that_never_returns_does_not_keep_the_process(
    world: World, redis_url: str, budget_path: Path, folder: Path
) -> None:
    """
    1. A synchronous node sleeps for an hour; control is gone.
    2. The run is handed back and the process ends, without errors of an interpreter that is being taken down.
    """
    made = await world.run(agent="endless")
    async with executor_process(world, redis_url, budget_path, folder) as child:
        await appears(folder / "stuck")
        child.close_pipe()
        assert await asyncio.wait_for(child.process.wait(), WAIT_SECONDS) == 0
        said = child.said.read_bytes()
    assert (await world.row(made.run_id))["state"] == "pending"
    assert b"Traceback" not in said
    assert b"Logging error" not in said


@pytest.mark.parametrize(
    ("text", "named"),
    [("task", "SystemExit: 3 in node 'leave'"), ("thread", "KeyboardInterrupt: no more in node 'leave_thread'")],
)
async def test_a_node_that_exits_fails_its_run_only(
    world: World, redis_url: str, budget_path: Path, folder: Path, text: str, named: str
) -> None:
    """
    1. A node calls sys.exit, or raises KeyboardInterrupt in its thread, while another run is in the same process.
    2. Its run fails as the graph's error, which names exception and node; the other run completes in attempt 1.
    """
    other = await world.run(agent="two")
    async with executor_process(world, redis_url, budget_path, folder):
        await appears(folder / "second")
        made = await world.run(agent="quitting", text=text)
        row = await world.state_is(made, "failed")
        (folder / "go").touch()
        survivor = await world.state_is(other, "completed")
    error = json.loads(row["error"])
    assert error["type"] == "graph_error"
    assert error["message"].startswith(named), error
    assert (survivor["attempt"], survivor["faults"]) == (1, 0)


async def test_an_edge_that_exits_fails_its_run_only(
    world: World, redis_url: str, budget_path: Path, folder: Path
) -> None:
    """
    1. A conditional edge calls sys.exit.
    2. The run fails with that as its error, in its first attempt; the process takes the next run.
    """
    made = await world.run(agent="quitting", text="edge")
    async with executor_process(world, redis_url, budget_path, folder):
        row = await world.state_is(made, "failed")
        (folder / "go").touch()
        await world.state_is(await world.run(agent="two"), "completed")
    assert "SystemExit: at an edge" in json.loads(row["error"])["message"]
    assert row["attempt"] == 1


async def test_a_blocked_loop_ends_with_control_and_children_do_not_hold_its_lock(
    world: World, redis_url: str, budget_path: Path, folder: Path
) -> None:
    """
    1. A node forked one child, started another with all descriptors, and blocks the event loop for an hour.
    2. Control is gone.
    3. The process ends within its deadline, and control's lock is free though both children live.
    """
    await world.run(agent="forking")
    lock = os.open(folder / "control.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pids: list[int] = []
    try:
        async with executor_process(world, redis_url, budget_path, folder, passed=(lock,)) as child:
            await appears(folder / "busy")
            pids = [int(pid) for pid in (folder / "pids").read_text().split()]
            child.close_pipe()
            assert await asyncio.wait_for(child.process.wait(), WAIT_SECONDS) == 0
        os.close(lock)
        lock = os.open(folder / "control.lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for pid in pids:
            os.kill(pid, 0)
    finally:
        os.close(lock)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
