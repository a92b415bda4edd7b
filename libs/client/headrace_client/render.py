"""A run on a terminal: its answer on standard output, everything about it on standard error.

Invariant: what is on standard output at the end is the answer, each character once, also after broken connections;
only when an attempt is given up in mid-answer does the text begin again, on a line of its own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace_client.following import Event
from headrace_client.types import LATENCIES, TIMES, Timing

PATIENCE_SECONDS = 1.0
"""A wait is told once it lasts so long: every run waits for a few milliseconds."""
TOOL_TEXT_MAX = 200
"""Characters of a tool's input or output on one line; the whole is in `headrace messages`."""


WAITS = {
    "no_slot": "waits for a free slot",
    "back_off": "waits before the next attempt, after a fault",
    "behind_run": "waits for the run before it",
}
"""Wait reasons in words; others are told as they are."""


class LiveRun:
    """Prints a run as its events come; closed, it prints nothing more on its own."""

    def __init__(self, out: Console, about: Console, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._out = out
        self._about = about
        self._patience_seconds = patience_seconds
        self._lock = threading.RLock()  # the timer of a wait prints from a thread of its own
        self._waiting: threading.Timer | None = None
        self._wait_told = ""
        self._asked: set[str] = set()
        self._shown: dict[str, str] = {}
        self._reasoned: dict[str, str] = {}
        self._open: Console | None = None
        self._tools_ended: set[str] = set()
        self._attempt = 0
        self.status: str | None = None
        self.result: Mapping[str, Any] | None = None
        self._handlers: Mapping[str, Callable[[Any], None]] = {
            "metadata": self._metadata,
            "queue": self._queue,
            "messages": self._messages,
            "tool": self._tool,
            "interrupt": self._interrupt,
            "snapshot": self._snapshot,
            "result": self._result,
            "end": self._end,
            "reset": self._reset,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End an open line, and the wait for a wait."""
        with self._lock:
            self._stop_waiting()
            self.break_line()

    @property
    def asked(self) -> frozenset[str]:
        """Ids of the questions that were printed."""
        return frozenset(self._asked)

    def show(self, event: Event) -> None:
        """Print what an event tells; events that a terminal has no use for are passed over."""
        handler = self._handlers.get(event.event)
        with self._lock:
            self._stop_waiting()
            if handler is not None:
                handler(event.data)

    def show_output(self, message_id: str, text: str) -> None:
        """Print the run's output message unless its text was shown, under its id or another."""
        with self._lock:
            if message_id in self._shown:
                text = self._missing(message_id, text)
            elif text in self._shown.values():
                return
            if text:
                self._say(message_id, text)
                self.break_line()

    def break_line(self) -> None:
        """End the line that the answer or the reasoning left open."""
        if self._open is not None:
            self._open.print()
            self._open.file.flush()
            self._open = None

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line about the run."""
        self.break_line()
        self._about.print(Text(text, style=style))

    def _metadata(self, data: Mapping[str, Any]) -> None:
        attempt = int(data.get("attempt") or 0)
        if attempt > 1 and attempt != self._attempt:
            self.note(
                f"attempt {attempt}: the one before ended without a result; goes on from the checkpoint", "yellow"
            )
        self._attempt = attempt
        self._wait_told = ""

    def _queue(self, data: Mapping[str, Any]) -> None:
        reason = str(data.get("wait_reason"))
        behind = f" {data['run_id']}" if data.get("run_id") else ""
        position = f", position {data['position']}" if data.get("position") else ""
        told = f"{WAITS.get(reason, f'waits: {reason}')}{behind}{position}"
        if self._wait_told:  # it is known already that this is a long one
            self._tell_wait(told)
            return
        timer = threading.Timer(self._patience_seconds, lambda: self._wait_is_long(timer, told))
        timer.daemon = True
        self._waiting = timer
        timer.start()

    def _wait_is_long(self, timer: threading.Timer, told: str) -> None:
        with self._lock:
            if self._waiting is timer:
                self._waiting = None
                self._tell_wait(told)

    def _tell_wait(self, told: str) -> None:
        if told != self._wait_told:
            self._wait_told = told
            self.note(told)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _reset(self, data: Mapping[str, Any]) -> None:
        self.note(f"the stream begins anew ({data.get('reason')})", "yellow")

    def _messages(self, data: Any) -> None:
        chunk = data[0]
        if chunk.get("type") not in {"AIMessageChunk", "ai"}:
            return
        message_id = str(chunk.get("id"))
        reasoning = (chunk.get("additional_kwargs") or {}).get("reasoning_content")
        if reasoning:
            self._reason(message_id, reasoning)
        text = text_of(chunk.get("content"))
        if chunk["type"] == "ai":
            text = self._missing(message_id, text)
        if text:
            self._say(message_id, text)

    def _tool(self, data: Mapping[str, Any]) -> None:
        phase, name = data.get("phase"), data.get("name")
        if phase == "started" and data.get("input") is not None:
            self.note(f"⚙ {name} {shortened(data['input'])}", "cyan")
        elif phase in {"finished", "failed"} and data.get("id") not in self._tools_ended:
            self._tools_ended.add(str(data.get("id")))
            took = f"  {data['ms']} ms" if data.get("ms") is not None else ""
            sign, style = ("✓", "green") if phase == "finished" else ("✗", "red")
            self.note(f"{sign} {name} → {shortened(data.get('output'))}{took}", style)

    def _snapshot(self, data: Mapping[str, Any]) -> None:
        """Show what the snapshot has and the terminal has not."""
        for message in data.get("messages") or ():
            if message.get("role") != "assistant":
                continue
            message_id = str(message.get("message_id"))
            text = self._missing(message_id, text_of(message.get("content")))
            if text:
                self._say(message_id, text)

    def _interrupt(self, data: Mapping[str, Any]) -> None:
        for question in data.get("questions") or ():
            if question.get("id") not in self._asked:
                self._asked.add(str(question.get("id")))
                self.note(question_text(question.get("value")), "yellow")

    def _missing(self, message_id: str, whole: str) -> str:
        shown = self._shown.get(message_id, "")
        if whole.startswith(shown):
            return whole[len(shown) :]
        if shown.startswith(whole):
            return ""  # an older picture of the same message
        self.note("the answer begins again:", "yellow")
        self._shown[message_id] = ""
        return whole

    def _reason(self, message_id: str, text: str) -> None:
        if message_id not in self._reasoned or self._open is self._out:
            self.break_line()
        self._reasoned[message_id] = self._reasoned.get(message_id, "") + text
        self._about.print(Text(printable(text), style="dim italic"), end="", soft_wrap=True)
        self._open = self._about

    def _say(self, message_id: str, text: str) -> None:
        if not self._shown.get(message_id) or self._open is self._about:
            self.break_line()
        self._shown[message_id] = self._shown.get(message_id, "") + text
        self._out.print(Text(printable(text)), end="", soft_wrap=True)
        self._out.file.flush()
        self._open = self._out

    def _result(self, data: Mapping[str, Any]) -> None:
        self.result = data

    def _end(self, data: Mapping[str, Any]) -> None:
        self.status = str(data.get("status"))
        self.break_line()


def text_of(content: Any) -> str:
    """Return the text of a message's content, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(block.get("text") or "" for block in blocks if isinstance(block, dict))


def question_text(value: Any) -> str:
    """Return an interrupt's question on lines of its own."""
    return f"? {printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))}"


def printable(text: str) -> str:
    """Return a text without control characters: a model must not steer the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() or c.isspace() else "�" for c in text.replace("\r\n", "\n"))


def shortened(value: Any) -> str:
    """Return a value on one line of bounded length."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(printable(text).split())
    return text if len(text) <= TOOL_TEXT_MAX else text[:TOOL_TEXT_MAX] + "…"


def timing_table(timing: Timing) -> Table:
    """Return the five times and the five latencies of a run, by their fixed names."""
    table = Table("time", "at (UTC)", "latency", box=None, pad_edge=False)
    table.add_column("ms", justify="right")
    fields: Mapping[str, Any] = dict(timing)
    for time, latency in zip(TIMES, LATENCIES, strict=True):
        at, ms = fields.get(time), fields.get(latency)
        table.add_row(time, at[11:].rstrip("Z") if at else "–", latency, "–" if ms is None else f"{ms}")
    return table
