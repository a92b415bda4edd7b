"""A run on a terminal: the answer once, whatever the stream went through."""

from __future__ import annotations

import io
from typing import Any

from headrace_client.following import Event
from headrace_client.render import LiveRun, timing_table
from headrace_client.types import LATENCIES, TIMES
from rich.console import Console


class Terminal:
    def __init__(self) -> None:
        self.out, self.about = io.StringIO(), io.StringIO()
        self.live = LiveRun(Console(file=self.out, width=200), Console(file=self.about, width=200))

    def show(self, *events: tuple[str, Any]) -> None:
        for name, data in events:
            self.live.show(Event(None, name, data))


def delta(text: str, message_id: str = "m1", **rest: Any) -> tuple[str, Any]:
    return "messages", [{"type": "AIMessageChunk", "id": message_id, "content": text, **rest}, {}]


def snapshot(text: str, message_id: str = "m1") -> tuple[str, Any]:
    return "snapshot", {"messages": [{"role": "assistant", "message_id": message_id, "content": text}]}


def test_answer_is_on_standard_output_only() -> None:
    """
    1. a run reasons, calls a tool and answers
    2. standard output has the answer, standard error reasoning, tool and its result
    """
    terminal = Terminal()
    chunk = {"type": "tool_call_chunk", "index": 0, "id": "c1", "name": "calculate", "args": ""}
    terminal.show(
        ("metadata", {"attempt": 1}),
        delta("", additional_kwargs={"reasoning_content": "let me think"}),
        delta("", tool_call_chunks=[chunk]),
        ("tool", {"id": "c1", "name": "calculate", "phase": "started", "input": {"expression": "6 * 7"}}),
        ("tool", {"id": "c1", "name": "calculate", "phase": "finished", "output": "42", "ms": 3}),
        delta("It is ", "m2"),
        delta("42.", "m2"),
        ("end", {"status": "completed"}),
    )
    assert terminal.out.getvalue() == "It is 42.\n"
    for told in ("let me think", 'calculate {"expression": "6 * 7"}', "→ 42", "3 ms"):
        assert told in terminal.about.getvalue()
    assert terminal.live.status == "completed"


def test_snapshot_adds_only_what_is_missing() -> None:
    terminal = Terminal()
    terminal.show(delta("one "), snapshot("one two"), snapshot("one"), delta(" three"))
    assert terminal.out.getvalue() == "one two three"


def test_complete_message_after_its_deltas_adds_nothing() -> None:
    terminal = Terminal()
    terminal.show(delta("one"), ("messages", [{"type": "ai", "id": "m1", "content": "one"}, {}]))
    assert terminal.out.getvalue() == "one"


def test_new_attempt_begins_the_answer_again() -> None:
    """
    1. an attempt is lost in mid-answer
    2. the next one answers in a message of its own, on its own line, and standard error says so between the two
    """
    terminal = Terminal()
    terminal.show(delta("half an"), ("metadata", {"attempt": 2}), ("snapshot", {"messages": []}), delta("whole", "m2"))
    assert terminal.out.getvalue() == "half an\nwhole"
    assert "attempt 2" in terminal.about.getvalue()


def test_model_cannot_steer_the_terminal() -> None:
    terminal = Terminal()
    terminal.show(delta("\x1b[2Jgone [bold]kept[/bold]\n"))
    assert terminal.out.getvalue() == "�[2Jgone [bold]kept[/bold]\n"


def test_table_has_the_ten_names() -> None:
    text = io.StringIO()
    timing: Any = dict.fromkeys((*TIMES, *LATENCIES)) | {"total_latency_ms": 1234}
    Console(file=text, width=80).print(timing_table(timing))
    for name in (*TIMES, *LATENCIES, "1234", "–"):
        assert name in text.getvalue()
