from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from run_worker.adapters.graphs import (
    GraphAttributeMissing,
    GraphFileInvalid,
    GraphFileMissing,
    GraphImportFailed,
    GraphNameTaken,
    NotAGraph,
    builtin_file,
    check_graphs,
    load_graphs,
)
from structlog.testing import capture_logs

SOURCE = """
from langgraph.graph import START, MessagesState, StateGraph

def node(state):
    return {"messages": []}

builder = StateGraph(MessagesState).add_node(node).add_edge(START, "node")
graph = builder.compile()
number = 7

def make():
    return builder

async def amake():
    return graph

def per_run(config):
    return builder.compile(name=config["configurable"].get("who", "nobody"))

def broken():
    raise RuntimeError("no")

def greedy(one, two):
    return graph
"""


STATES = """
from typing import Annotated
from pydantic import BaseModel, Field
from langgraph.graph import START, MessagesState, StateGraph
from typing_extensions import TypedDict

class Told(BaseModel):
    '''Prose.'''
    title: str = Field(description="prose")
    description: str

class Odd:
    pass

class Untold(TypedDict):
    odd: Odd

def node(state):
    return {}

def graph_of(state):
    return StateGraph(state).add_node(node).add_edge(START, "node").compile()

told, untold, chat = graph_of(Told), graph_of(Untold), graph_of(MessagesState)
"""


def write(folder: Path, graphs: dict[str, Any], **more: Any) -> Path:
    (folder / "agent.py").write_text(SOURCE)
    file = folder / "langgraph.json"
    file.write_text(json.dumps({"dependencies": ["."], "graphs": graphs, **more}))
    return file


async def test_every_shape_of_graph_loads(tmp_path: Path) -> None:
    """
    1. A file names a compiled graph, a builder, a factory, an async factory and one that takes the config.
    2. All load; the one with a config is made again for each run; each run has its own checkpointer.
    """
    shapes = {name: f"./agent.py:{name}" for name in ("graph", "builder", "make", "amake", "per_run")}
    agents, errors = await load_graphs([write(tmp_path, shapes)])
    assert errors == []
    assert set(agents) == set(shapes)
    saver = InMemorySaver()
    made = await agents["per_run"].for_run({"configurable": {"who": "ann"}}, saver)
    assert (made.name, made.checkpointer) == ("ann", saver)
    copy = await agents["graph"].for_run({}, saver)
    assert copy.checkpointer is saver
    assert agents["graph"].graph.checkpointer is None
    assert "messages" in agents["graph"].input_schema["properties"]


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("./gone.py:graph", GraphFileMissing),
        ("./agent.py:gone", GraphAttributeMissing),
        ("./agent.py:number", NotAGraph),
        ("./agent.py:broken", GraphImportFailed),
        ("./agent.py:greedy", NotAGraph),
        ("./agent.py", GraphFileInvalid),
        ("./bad.py:graph", GraphImportFailed),
    ],
)
async def test_a_bad_graph_is_told_and_leaves_the_others(tmp_path: Path, spec: str, error: type[Exception]) -> None:
    """
    1. One of two graphs cannot be loaded.
    2. The other loads; the error has its type and names the file and the graph.
    """
    file = write(tmp_path, {"bad": spec, "good": "./agent.py:graph"})
    (tmp_path / "bad.py").write_text("import module_that_is_not_there\n")
    agents, errors = await load_graphs([file])
    assert list(agents) == ["good"]
    assert [type(found) for found in errors] == [error]
    assert str(file) in str(errors[0])
    assert "'bad'" in str(errors[0])


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("./agent.py:gone", "has no 'gone'; it has: builder, graph"),
        ("./agent.py:number", "is an int, not a graph"),
        ("./agent.py:broken", "broken() raised RuntimeError: no (agent.py:21)"),
        ("./bad.py:graph", "raised ModuleNotFoundError: No module named 'module_that_is_not_there' (bad.py:2)"),
        ("./odd.py:graph", "raised SyntaxError: invalid syntax (odd.py:3)"),
    ],
)
async def test_a_bad_graph_is_told_with_its_line_and_what_there_is(tmp_path: Path, spec: str, text: str) -> None:
    """
    1. A graph cannot be loaded.
    2. The error names the author's line, or what the file has instead.
    """
    file = write(tmp_path, {"bad": spec})
    (tmp_path / "bad.py").write_text("\nimport module_that_is_not_there\n")
    (tmp_path / "odd.py").write_text("\n\ngraph = = 1\n")
    [error] = (await load_graphs([file]))[1]
    assert str(error).endswith(text)


async def test_schemas_keep_structure_and_lose_prose(tmp_path: Path) -> None:
    """
    1. A state has fields that are called title and description; another one has a type without a schema.
    2. The first's schema has both fields and no prose; the second's is empty, and its graph loads.
    """
    (tmp_path / "agent.py").write_text(STATES)
    file = tmp_path / "langgraph.json"
    file.write_text(json.dumps({"graphs": {name: f"./agent.py:{name}" for name in ("told", "untold", "chat")}}))
    with capture_logs() as logs:
        agents, errors = await load_graphs([file])
    assert errors == []
    schema = agents["told"].input_schema
    assert schema["properties"]["title"] == {"type": "string"}
    assert set(schema["properties"]) == {"title", "description"}
    assert "title" not in schema
    assert agents["untold"].input_schema == {}
    assert {(line["graph"], line["schema"]) for line in logs} == {("untold", "input"), ("untold", "output")}
    assert all("Odd" in line["error"] for line in logs)
    assert b"description" not in orjson.dumps(agents["chat"].input_schema)


async def test_names_are_taken_once(tmp_path: Path) -> None:
    """
    1. A user's file calls its graph `echo`, as a built-in agent is called.
    2. The error says that the name is taken.
    """
    [error] = await check_graphs([write(tmp_path, {"echo": "./agent.py:graph"})])
    assert isinstance(error, GraphNameTaken)
    assert "built-in agent" in str(error)


async def test_packages_import_relatively_and_equal_file_names_do_not_collide(tmp_path: Path) -> None:
    """
    1. Two folders have an agent.py each; one lies in a package and imports its neighbour relatively.
    2. Both load, each with its own graph.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    package = two / "pack_for_test"
    for folder in (one, package):
        folder.mkdir(parents=True)
    first = write(one, {"one": "./agent.py:graph"})
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(SOURCE)
    (package / "agent.py").write_text("from .parts import graph\n")
    second = two / "langgraph.json"
    second.write_text(
        json.dumps({"dependencies": ["."], "graphs": {"two": {"path": "./pack_for_test/agent.py:graph"}}})
    )
    agents, errors = await load_graphs([first, second])
    assert errors == []
    assert agents["one"].graph is not agents["two"].graph
    assert agents["one"].digest != agents["two"].digest


async def test_settings_and_environment_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    1. A file sets an agent's limits and names an env file.
    2. The settings are the agent's; variables are set where they were not.
    """
    monkeypatch.setenv("HEADRACE_TEST_OLD", "stays")
    monkeypatch.setenv("HEADRACE_TEST_NEW", "gone")
    monkeypatch.delenv("HEADRACE_TEST_NEW")
    (tmp_path / ".env").write_text("# comment\nexport HEADRACE_TEST_NEW='a b'\nHEADRACE_TEST_OLD=changed\n")
    section = {"agents": {"one": {"durability": "sync", "run_timeout_seconds": 5}}}
    file = write(tmp_path, {"one": "./agent.py:graph"}, env=".env", headrace=section)
    agents, errors = await load_graphs([file])
    assert errors == []
    assert agents["one"].settings.as_json() == {"durability": "sync", "run_timeout_seconds": 5}
    assert (os.environ["HEADRACE_TEST_NEW"], os.environ["HEADRACE_TEST_OLD"]) == ("a b", "stays")


@pytest.mark.parametrize(
    "settings", [{"durability": "never"}, {"tool_timeout_seconds": 0}, {"retries": 1}, {"run_timeout_seconds": True}]
)
async def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    """
    1. The section of an agent holds a wrong value or an unknown name.
    2. The file is refused with the agent's name.
    """
    file = write(tmp_path, {"one": "./agent.py:graph"}, headrace={"agents": {"one": settings}})
    [error] = (await load_graphs([file]))[1]
    assert isinstance(error, GraphFileInvalid)
    assert "'one'" in str(error)


async def test_the_built_in_agents_load() -> None:
    """
    1. Only the built-in file is loaded.
    2. assistant and echo are there.
    """
    agents, errors = await load_graphs([builtin_file()])
    assert errors == []
    assert set(agents) == {"assistant", "echo"}
