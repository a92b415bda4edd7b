"""A run on a terminal: the answer once, whatever the stream went through."""

from __future__ import annotations

import io
import threading
from typing import Any

from headrace_client.following import Event
from headrace_client.render import LiveRun, timing_table
from headrace_client.types import LATENCIES, TIMES
from rich.console import Console


class Terminal:
    def __init__(self, patience_seconds: float = 60.0) -> None:
        self.out, self.about = io.StringIO(), io.StringIO()
        consoles = Console(file=self.out, width=200), Console(file=self.about, width=200)
        self.live = LiveRun(*consoles, patience_seconds=patience_seconds)

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


class Told(io.StringIO):
    """Sets an event when something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        self.event.set()
        return written


def waiting(reason: str, **rest: Any) -> tuple[str, Any]:
    return "queue", {"wait_reason": reason, "position": 0, **rest}


def test_a_short_wait_is_not_told() -> None:
    """1. A run waits, and begins before patience ends. 2. Nothing is said, then or later."""
    terminal = Terminal(patience_seconds=0.05)
    with terminal.live:
        terminal.show(waiting("no_slot"), ("metadata", {"attempt": 1}))
        terminal.show(waiting("back_off"))
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for timer in timers:
        timer.join(5)
    assert terminal.about.getvalue() == ""


def test_a_long_wait_is_told_once_and_its_changes_at_once() -> None:
    """
    1. a run waits longer than patience: it is said why
    2. the same again is not repeated, another reason is said at once
    """
    terminal = Terminal(patience_seconds=0.01)
    told = terminal.about = Told()
    terminal.live = LiveRun(Console(file=io.StringIO()), Console(file=told, width=200), patience_seconds=0.01)
    with terminal.live:
        terminal.show(waiting("no_slot"))
        assert told.event.wait(5)
        terminal.show(waiting("no_slot"), waiting("behind_run", run_id="r7", position=2))
    assert told.getvalue() == "waits for a free slot\nwaits for the run before it r7, position 2\n"


def test_questions_are_shown_once() -> None:
    terminal = Terminal()
    question = {"id": "i1", "value": {"question": "Really?"}}
    terminal.show(("interrupt", {"questions": [question]}), ("interrupt", {"questions": [question]}))
    assert terminal.about.getvalue() == '? {"question": "Really?"}\n'
    assert terminal.live.asked == {"i1"}


def test_output_that_was_not_streamed_is_shown_and_no_other() -> None:
    """
    1. an answer was streamed under one id; the result has the same text under another: nothing more
    2. the result has another text: it is shown on a line of its own
    """
    terminal = Terminal()
    terminal.show(delta("42"))
    terminal.live.show_output("m1", "42")
    terminal.live.show_output("other", "42")
    assert terminal.out.getvalue() == "42"
    terminal.live.show_output("other", "It is 42.")
    assert terminal.out.getvalue() == "42\nIt is 42.\n"
