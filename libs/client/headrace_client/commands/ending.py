"""How a run's end is told: output that was not streamed, questions, error, next step; and the exit code it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_client.commands.common import EXIT_FAILED, Session
from headrace_client.commands.next_steps import ANSWER_LATER, BY_RUN_ERROR
from headrace_client.render import LiveRun, printable, question_text, text_of, timing_table
from headrace_client.types import Result, Run, RunError


def show_rest(session: Session, live: LiveRun, ended: Result) -> None:
    """Print of a followed run's output what its stream did not show: graphs need not stream what they return."""
    if ended["run"]["state"] != "completed":
        return
    output = ended["output"]
    if output is not None:
        live.show_output(str(output.get("message_id")), text_of(output["content"]))
    elif ended.get("values") is not None:
        session.print_json(ended["values"])


def show_output(session: Session, ended: Result) -> None:
    """Print a run's output: its message's text, else its values as JSON."""
    output = ended["output"]
    if output is not None:
        session.out.print(printable(text_of(output["content"])), markup=False, soft_wrap=True)
    elif ended.get("values") is not None:
        session.print_json(ended["values"])


def tell_end(session: Session, run: Run, *, asked: frozenset[str] = frozenset()) -> int:
    """Print a run's times and how it ended, with all but the questions `asked` already; returns the exit code."""
    state = run["state"]
    questions = [question for question in run.get("interrupts") or () if question.get("id") not in asked]
    for question in questions:
        session.about.print(question_text(question.get("value")), style="yellow", markup=False, soft_wrap=True)
    session.about.print(timing_table(run["timing"]))
    style = {"completed": "green", "failed": "red"}.get(state, "yellow")
    session.about.print(f"[{style}]{state}[/{style}]{_usage(run['usage'])}")
    if run["error"]:
        _tell_error(session, run["error"])
    if state == "interrupted":
        step = ANSWER_LATER.replace("{thread_id}", run["thread_id"])
        session.about.print(f"The graph waits for an answer. {step}", style="dim", markup=False, soft_wrap=True)
    return exit_code(run)


def exit_code(run: Run) -> int:
    """Return 0 for a completed run."""
    return 0 if run["state"] == "completed" else EXIT_FAILED


def _tell_error(session: Session, error: RunError) -> None:
    details = error.get("details") or {}
    places = ((name, details[name]) for name in ("exception", "node") if details.get(name))
    place = ", ".join(f"{name} {value}" for name, value in places)
    told = f"{error['type']}: {error['message']}{f' ({place})' if place else ''}"
    session.about.print(printable(told), markup=False, soft_wrap=True)
    if step := BY_RUN_ERROR.get(error["type"]):
        session.about.print(step, style="dim", markup=False, soft_wrap=True)


def _usage(usage: Mapping[str, Any]) -> str:
    total = usage.get("total_tokens")
    return f"  [dim]{total} tokens[/dim]" if total else ""
