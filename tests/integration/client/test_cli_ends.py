"""What the command says about the ways a run ends, about threads, and about input that is no text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from headrace_client.cli import build
from headrace_client.types import LATENCIES, TIMES
from typer.testing import CliRunner

from tests.integration.client.tiny_server import Reply, no_content, serving, stream, value

THREAD = {"thread_id": "t1", "agent": "asker"}
REQUEST = {"request_id": "q1", "run_id": "r1", "thread_id": "t1", "state": "dispatched"}
BEGIN: tuple[str, str, Any] = ("1-1", "metadata", {"attempt": 1})

Headrace = Callable[..., Awaitable[tuple[int, str, str]]]


def ended(state: str, *, output: Any = None, values: Any = None, **rest: Any) -> Reply:
    base = {"run_id": "r1", "thread_id": "t1", "agent": "asker", "state": state, "attempt": 1, "error": None}
    base |= {"timing": dict.fromkeys((*TIMES, *LATENCIES)), "usage": {}, "interrupts": []}
    return value(200, {"run": base | rest, "output": output, "values": values})


@pytest.fixture
def headrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    monkeypatch.chdir(tmp_path)

    async def command(url: str, *arguments: str) -> tuple[int, str, str]:
        environ = {"HEADRACE_URL": url, "HEADRACE_API_KEY": "hr_secret"}
        done = await asyncio.to_thread(CliRunner().invoke, build(), list(arguments), env=environ)
        assert "Traceback" not in done.output
        return done.exit_code, done.stdout, done.stderr

    return command


@pytest.mark.parametrize("told_by", ["event", "result"])
async def test_interrupted_run_shows_its_questions_and_the_next_step(headrace: Headrace, told_by: str) -> None:
    """
    1. a run ends with a question, told by an event, or by the result alone
    2. the question is printed once, and that answering comes later while the thread can be deleted; exit code 1
    """
    questions = [{"id": "i1", "value": {"question": "Really delete it?"}}]
    event = [("1-2", "interrupt", {"questions": questions})] if told_by == "event" else []
    events = stream(BEGIN, *event, ("1-3", "end", {"status": "interrupted"}))
    replies = value(201, THREAD), value(202, REQUEST), events, ended("interrupted", interrupts=questions)
    async with serving(*replies) as server:
        code, out, err = await headrace(server.base_url, "run", "hi")
    assert (code, out) == (1, "")
    assert err.count("Really delete it?") == 1
    assert "later release" in err
    assert "headrace threads delete t1" in err


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"output": {"message_id": "m", "content": "from a dict"}}, "from a dict\n"),
        ({"values": {"n": 21, "twice": 42}}, '{"n": 21, "twice": 42}\n'),
    ],
)
async def test_output_that_was_not_streamed_is_printed(headrace: Headrace, result: Any, shown: str) -> None:
    """1. A graph returns its message as a dict, or has no messages. 2. Its output is printed at the end."""
    events = stream(BEGIN, ("1-2", "end", {"status": "completed"}))
    replies = value(201, THREAD), value(202, REQUEST), events, ended("completed", **result)
    async with serving(*replies) as server:
        code, out, _ = await headrace(server.base_url, "run", "hi")
    assert (code, out) == (0, shown)


async def test_output_is_not_printed_where_a_part_was_asked_for(headrace: Headrace) -> None:
    run = value(200, {"run_id": "r1", "state": "completed"})
    whole = ended("completed", output={"message_id": "m", "content": "all of it"})
    async with serving(run, no_content, whole) as server:
        assert (await headrace(server.base_url, "follow", "r1", "--after", "1-9"))[:2] == (0, "")


async def test_input_of_a_graph_is_submitted_as_json(headrace: Headrace) -> None:
    async with serving(value(201, THREAD), value(202, REQUEST)) as server:
        code, _, _ = await headrace(server.base_url, "run", "-a", "custom", "--input", '{"n": 21}', "--detach")
        assert code == 0
        assert server.asked[0].json() == {"agent": "custom"}
        assert server.asked[1].json() == {"input": {"n": 21}}


async def test_a_thread_keeps_its_agent(headrace: Headrace) -> None:
    """1. --agent names another agent than the thread's: wrong usage that names it. 2. The same agent is fine."""
    async with serving(value(200, THREAD)) as server:
        code, _, err = await headrace(server.base_url, "run", "hi", "-t", "t1", "-a", "echo")
        assert (code, "agent asker" in " ".join(err.split())) == (2, True)
        assert len(server.asked) == 1
    async with serving(value(200, THREAD), value(202, REQUEST)) as server:
        assert (await headrace(server.base_url, "run", "hi", "-t", "t1", "-a", "asker", "-d"))[0] == 0


async def test_failed_graph_names_exception_node_and_logs(headrace: Headrace) -> None:
    error: dict[str, Any] = {"type": "graph_error", "message": "no such [customer]"}
    error |= {"details": {"exception": "ValueError", "node": "look_up"}}
    async with serving(ended("failed", error=error)) as server:
        code, _, err = await headrace(server.base_url, "result", "r1")
    assert code == 1
    assert "graph_error: no such [customer] (exception ValueError, node look_up)" in err
    assert "headrace logs run-worker" in err


async def test_thread_is_deleted(headrace: Headrace) -> None:
    async with serving(no_content) as server:
        code, _, err = await headrace(server.base_url, "threads", "delete", "t1", "--cancel")
        assert (code, "deleted t1" in err) == (0, True)
        assert (server.asked[0].method, server.asked[0].path) == ("DELETE", "/v1/threads/t1?cancel=true")


async def test_messages_say_what_is_incomplete_and_what_never_came(headrace: Headrace) -> None:
    """
    1. one run was cancelled in mid-answer, the next before any text
    2. the partial answer is marked, the missing one is told behind its question; --json is one array over all pages
    """
    message = {"tool_calls": [], "reasoning": "", "name": "", "partial": False}
    said = [
        message | {"role": "user", "content": "first", "run_id": "r1"},
        message | {"role": "assistant", "content": "half an", "partial": True, "run_id": "r1"},
        message | {"role": "user", "content": "second", "run_id": "r2"},
    ]
    runs = [{"run_id": name, "state": "cancelled"} for name in ("r1", "r2")]
    pages = [
        value(200, {"messages": said[:1], "runs": runs[:1], "next_page_token": "p2"}),
        value(200, {"messages": said[1:], "runs": runs, "next_page_token": None}),
    ]
    async with serving(*pages) as server:
        _, out, _ = await headrace(server.base_url, "messages", "t1")
    expected = ["user", "first", "assistant (incomplete: the run was cancelled)", "half an", "user", "second"]
    assert out.splitlines() == [*expected, "(cancelled before any text)"]
    async with serving(*pages) as server:
        _, out, _ = await headrace(server.base_url, "messages", "t1", "--json")
    assert json.loads(out) == said
