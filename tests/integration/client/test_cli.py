"""The command against a real HTTP server: what it prints where, its exit codes, and what it says about errors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from headrace_client.cli import build
from headrace_client.types import LATENCIES, TIMES
from typer.testing import CliRunner

from tests.integration.client.tiny_server import Reply, no_content, problem, serving, stream, value

THREAD = {"thread_id": "t1", "agent": "assistant", "state": "idle", "updated_at": "2030-01-01T00:00:00Z", "title": "A"}
REQUEST = {"request_id": "q1", "run_id": "r1", "thread_id": "t1", "state": "dispatched"}
TIMING = dict.fromkeys(TIMES, "2030-01-01T00:00:00.000000Z") | dict.fromkeys(LATENCIES, 7)
EVENTS: list[tuple[str | None, str, Any]] = [
    ("1-1", "metadata", {"attempt": 1}),
    ("1-2", "messages", [{"type": "AIMessageChunk", "id": "m", "content": "It is "}, {}]),
    ("1-3", "messages", [{"type": "AIMessageChunk", "id": "m", "content": "42."}, {}]),
]

Headrace = Callable[..., Awaitable[tuple[int, str, str]]]


def run_of(state: str, **rest: Any) -> dict[str, Any]:
    base = {"run_id": "r1", "agent": "assistant", "state": state, "attempt": 1, "timing": TIMING, "error": None}
    return base | {"usage": {"total_tokens": 9}, "cancel_requested_at": None, "wait": None} | rest


def finished(state: str, **rest: Any) -> Reply:
    output = {"content": "It is 42."} if state == "completed" else None
    return value(200, {"run": run_of(state, **rest), "output": output, "values": None})


def end(state: str) -> tuple[str, str, Any]:
    return "1-5", "end", {"status": state}


@pytest.fixture
def headrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    monkeypatch.chdir(tmp_path)
    for name in ("HEADRACE_URL", "HEADRACE_API_KEY", "HEADRACE_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)

    async def command(*arguments: str, url: str | None = None, text: str | None = None) -> tuple[int, str, str]:
        environ = {"HEADRACE_URL": url, "HEADRACE_API_KEY": "hr_secret"} if url else {}
        done = await asyncio.to_thread(CliRunner().invoke, build(), list(arguments), env=environ, input=text)
        assert "Traceback" not in done.output
        return done.exit_code, done.stdout, done.stderr

    return command


async def test_run_streams_the_answer(headrace: Headrace) -> None:
    """
    1. `headrace run` makes a thread, submits and follows
    2. standard output is the answer alone; ids and the ten names are on standard error
    3. exit code 0, since the run is completed
    """
    events = stream(*EVENTS, end("completed"))
    async with serving(value(201, THREAD), value(202, REQUEST), events, finished("completed")) as server:
        code, out, err = await headrace("run", "What is 6 × 7?", url=server.base_url)
        assert (code, out) == (0, "It is 42.\n")
        for told in ("t1", "r1", "completed", "9 tokens", *TIMES, *LATENCIES):
            assert told in err
        assert server.asked[1].json() == {"message": "What is 6 × 7?"}


async def test_failed_run_is_exit_code_1_with_its_error(headrace: Headrace) -> None:
    error = {"type": "model_unavailable", "message": "the provider answered 500", "details": {}}
    events = stream(EVENTS[0], end("failed"))
    async with serving(value(202, REQUEST), events, finished("failed", error=error)) as server:
        code, out, err = await headrace("run", "hi", "--thread", "t1", url=server.base_url)
        assert (code, out) == (1, "")
        assert "model_unavailable: the provider answered 500" in err


async def test_run_reads_standard_input_and_detaches(headrace: Headrace) -> None:
    async with serving(value(202, REQUEST)) as server:
        code, out, _ = await headrace("run", "-", "-t", "t1", "--detach", url=server.base_url, text="from a pipe")
        assert (code, out) == (0, "r1\n")
        assert server.asked[0].json() == {"message": "from a pipe"}


async def test_follow_as_json_is_a_line_per_event(headrace: Headrace) -> None:
    events = stream(*EVENTS[1:], end("completed"))
    async with serving(value(200, run_of("running")), events, finished("completed")) as server:
        code, out, _ = await headrace("follow", "r1", "--json", "--after", "1-1", url=server.base_url)
        assert code == 0
        assert [json.loads(line)["id"] for line in out.splitlines()] == ["1-2", "1-3", "1-5"]
        assert server.asked[1].headers["last-event-id"] == "1-1"


async def test_follow_behind_the_end_tells_how_it_ended(headrace: Headrace) -> None:
    async with serving(value(200, run_of("cancelled")), no_content, finished("cancelled")) as server:
        code, _, err = await headrace("follow", "r1", "--after", "1-5", url=server.base_url)
        assert code == 1
        assert "cancelled" in err


async def test_cancel_says_that_it_is_durable(headrace: Headrace) -> None:
    asked = run_of("running", cancel_requested_at="2030-01-01T00:00:00Z")
    async with serving(value(202, asked)) as server:
        code, out, _ = await headrace("cancel", "r1", url=server.base_url)
        assert (code, "cancel committed" in out) == (0, True)
        assert (server.asked[0].method, server.asked[0].path) == ("POST", "/v1/runs/r1/cancel")


async def test_lists(headrace: Headrace) -> None:
    waiting = run_of("pending", wait={"wait_reason": "no_slot"})
    async with serving(value(200, {"runs": [waiting], "next_page_token": None})) as server:
        code, out, _ = await headrace("ps", "--state", "pending", url=server.base_url)
        assert (code, "pending (no_slot)" in out) == (0, True)
        assert server.asked[0].path == "/v1/runs?page_size=20&state=pending"
    async with serving(value(200, {"threads": [THREAD], "next_page_token": None})) as server:
        assert "t1" in (await headrace("threads", url=server.base_url))[1]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": [{"type": "text", "text": "[bold]hi"}],
        "reasoning": "hm",
        "name": "",
    }
    message |= {"partial": False, "tool_calls": [{"id": "c", "name": "calculate", "args": {"x": 1}}]}
    pages = [value(200, {"messages": [message], "runs": [], "next_page_token": token}) for token in ("p2", None)]
    async with serving(*pages) as server:
        code, out, _ = await headrace("messages", "t1", url=server.base_url)
        assert code == 0
        assert out.count("[bold]hi") == 2
        assert "calculate" in out
        assert server.asked[1].path == "/v1/threads/t1/messages?page_token=p2"


async def test_key_is_shown_once_and_alone(headrace: Headrace) -> None:
    made = {"key_id": "abc", "key": "hr_abc_new", "scopes": ["write"], "label": "ci", "uid": "u"}
    async with serving(value(201, made)) as server:
        code, out, err = await headrace("keys", "create", "ci", "--scope", "write", "--days", "2", url=server.base_url)
        assert (code, out) == (0, "hr_abc_new\n")
        assert "not shown again" in err
        assert server.asked[0].json() == {"label": "ci", "scopes": ["write"], "expires_in_seconds": 172800}
    async with serving(no_content) as server:
        assert (await headrace("keys", "revoke", "abc", url=server.base_url))[0] == 0


async def test_service_token_is_added_to_the_tokens_file(headrace: Headrace, tmp_path: Path) -> None:
    """
    1. a deployment is on this machine
    2. `keys create my-tool --scope service` prints a token and adds its digest, keeping the others
    3. the same name again is refused
    """
    (tmp_path / ".run").mkdir()
    (tmp_path / ".run" / "state.json").write_text(json.dumps({"base_url": "http://127.0.0.1:1", "api_key": "k"}))
    tokens = tmp_path / ".run" / "tokens.json"
    tokens.write_text(json.dumps({"cli": "digest"}))
    code, out, _ = await headrace("keys", "create", "my-tool", "--scope", "service")
    digest = hashlib.sha256(out.strip().encode()).hexdigest()
    assert (code, json.loads(tokens.read_text())) == (0, {"cli": "digest", "my-tool": digest})
    assert tokens.stat().st_mode & 0o777 == 0o600
    code, _, err = await headrace("keys", "create", "my-tool", "--scope", "service")
    assert (code, "has a token already" in err) == (1, True)


@pytest.mark.parametrize(
    ("status", "reason", "step"),
    [
        (401, "KEY_INVALID", "make down && make up"),
        (401, "KEY_MISSING", "HEADRACE_API_KEY"),
        (403, "SCOPE_MISSING", "headrace keys create"),
        (404, "RUN_NOT_FOUND", "headrace ps"),
        (404, "THREAD_NOT_FOUND", "headrace threads"),
        (404, "KEY_NOT_FOUND", "headrace keys list"),
        (404, "SOMETHING_NEW", "headrace ps"),
        (409, "THREAD_BUSY", "headrace ps --thread"),
        (409, "THREAD_INTERRUPTED", "headrace threads delete THREAD"),
        (429, "ACTIVE_RUNS", "Try again in 90 s"),
        (500, "INTERNAL", "headrace logs"),
    ],
)
async def test_errors_say_the_next_step(headrace: Headrace, status: int, reason: str, step: str) -> None:
    async with serving(problem(status, reason, "what [went] wrong", retry_after="90")) as server:
        code, out, err = await headrace("cancel", "r1", url=server.base_url)
        assert (code, out) == (1, "")
        assert f"what [went] wrong ({reason})" in err
        assert step in err
        assert "hr_secret" not in err


async def test_what_the_call_has_wrong_is_exit_code_2(headrace: Headrace) -> None:
    async with serving(problem(400, "AGENT_NOT_FOUND", "agent 'x' is not known")) as server:
        code, _, err = await headrace("run", "hi", "--agent", "x", url=server.base_url)
        assert (code, "`headrace agents`" in err) == (2, True)


async def test_address_without_scheme_says_what_to_write(headrace: Headrace) -> None:
    code, _, err = await headrace("--url", "localhost:38541", "ps")
    assert (code, "write http://localhost:38541" in err) == (2, True)


async def test_nothing_running_says_how_to_start(headrace: Headrace) -> None:
    code, _, err = await headrace("ps")
    assert (code, "headrace up" in err) == (1, True)


async def test_server_away_says_how_to_start(headrace: Headrace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        code, _, err = await headrace("ps", url=f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert (code, "headrace up" in err) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["follow"],
        ["follow", "r1", "--after", "banana"],
        ["follow", "r1", "--after", "1-0"],
        ["ps", "--limit", "0"],
        ["run"],
        ["run", "x", "--strategy", "maybe"],
        ["run", "x", "--input", "{}"],
        ["run", "--input", "{n: 1}"],
        ["run", "--input", "null"],
        ["nope"],
    ],
)
async def test_wrong_usage_is_exit_code_2(headrace: Headrace, arguments: list[str]) -> None:
    assert (await headrace(*arguments))[0] == 2


async def test_nothing_to_say_is_refused(headrace: Headrace) -> None:
    code, _, err = await headrace("run", "  ", url="http://127.0.0.1:9")
    assert (code, "nothing to say" in err) == (2, True)


async def test_every_command_has_an_example(headrace: Headrace) -> None:
    commands = ["run", "follow", "cancel", "ps", "result", "threads", "messages", "agents", "demo"]
    commands += ["keys create", "keys list", "keys revoke", "threads delete"]
    for words in commands:
        code, out, _ = await headrace(*words.split(), "--help")
        assert (code, "Example: headrace" in out) == (0, True), words
        assert "<bool>" not in out, words


async def test_version(headrace: Headrace) -> None:
    assert await headrace("--version") == (0, f"headrace {version('headrace-client')}\n", "")


async def test_demo_on_a_server_elsewhere(headrace: Headrace) -> None:
    """
    1. HEADRACE_URL names a server, so none is started
    2. the demo streams a run, prints the latencies, address, key and a curl line for that very run
    3. exit code 0 only because it is completed
    """
    run = [value(201, THREAD), value(202, REQUEST), stream(*EVENTS, end("completed"))]
    async with serving(*run, finished("completed")) as server:
        code, out, err = await headrace("demo", url=server.base_url)
        assert code == 0
        line = f"curl -N -H 'Authorization: Bearer hr_secret' {server.base_url}/v1/runs/r1/events"
        assert line in out.splitlines()
        for told in ("make down", *TIMES, *LATENCIES):
            assert told in err
    async with serving(*run[:2], stream(EVENTS[0], end("failed")), finished("failed")) as server:
        assert (await headrace("demo", url=server.base_url))[0] == 1
