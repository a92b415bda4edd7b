"""Commands about runs: submit and watch, follow, cancel, list, look at the result."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from headrace_client.client import Client
from headrace_client.commands.common import EXIT_FAILED, JsonOption, LimitOption, Session, refuse, session_of
from headrace_client.render import LiveRun, text_of, timing_table
from headrace_client.types import Run, RunState

EXIT_INTERRUPTED = 130
"""The shell's convention for a command ended by Ctrl-C."""


class Strategy(StrEnum):
    """What a submission does when its thread is busy."""

    ENQUEUE = "enqueue"
    REJECT = "reject"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"


RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run.")]


def run(
    ctx: typer.Context,
    text: Annotated[str, typer.Argument(help="What to say; `-` reads it from standard input.")],
    thread: Annotated[str | None, typer.Option("--thread", "-t", help="Go on in this thread.")] = None,
    agent: Annotated[str, typer.Option("--agent", "-a", help="Agent of the new thread.")] = "assistant",
    strategy: Annotated[Strategy | None, typer.Option(help="What to do when the thread is busy.")] = None,
    key: Annotated[str | None, typer.Option("--idempotency-key", help="Makes a repeated command safe.")] = None,
    *,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the run's id and return.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a message and stream the answer.

    The answer goes to standard output, all else to standard error. Exit code 0 only if the run is `completed`.

    Example: headrace run "What is 6 × 7?"
    """
    session = session_of(ctx)
    message = sys.stdin.read() if text == "-" else text
    if not message.strip():
        raise refuse(ctx, 'there is nothing to say; example: headrace run "What is 6 × 7?"')
    options = {"multitask_strategy": strategy.value} if strategy else {}
    with session.client() as client:
        thread_id = thread or client.create_thread(agent)["thread_id"]
        request = client.submit(thread_id, message, idempotency_key=key, **options)
        if detach:
            if as_json:
                session.print_json(request)
            else:
                session.out.print(request["run_id"])
            return
        if not as_json:
            session.about.print(f"[dim]thread {thread_id}\nrun    {request['run_id']}[/dim]")
        watch(session, client, request["run_id"], after=None, as_json=as_json)


def follow(
    ctx: typer.Context,
    run_id: RunArgument,
    after: Annotated[str | None, typer.Option(help="Begin behind this event id, as 1-17.")] = None,
    modes: Annotated[str | None, typer.Option(help="Only these events, as messages,tool.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Stream a run from its beginning, or from behind an event, to its end.

    With --json each event is one line. Exit code 0 only if the run is `completed`.

    Example: headrace follow 0196f3c2-… --after 1-17
    """
    session = session_of(ctx)
    with session.client() as client:
        client.get_run(run_id)  # a wrong id is told at once, not after attempts to connect
        if as_json:
            status = None
            for event in client.follow(run_id, after=after, modes=modes.split(",") if modes else None):
                session.print_json({"id": event.id, "event": event.event, "data": event.data})
                status = event.data.get("status") if event.event == "end" else status
            status = status or client.get_run(run_id)["state"]  # nothing came behind the end
            raise typer.Exit(0 if status == "completed" else EXIT_FAILED)
        watch(session, client, run_id, after=after, modes=modes, as_json=False)


def cancel(ctx: typer.Context, run_id: RunArgument, *, as_json: JsonOption = False) -> None:
    """Cancel a run. When this returns, the cancel is durable.

    Example: headrace cancel 0196f3c2-…
    """
    session = session_of(ctx)
    with session.client() as client:
        run = client.cancel(run_id)
        if as_json:
            session.print_json(run)
        elif run["cancel_requested_at"] and run["state"] in {"pending", "running"}:
            session.out.print(f"cancel committed, the run is {run['state']} until its executor has stopped")
        else:
            session.out.print(f"the run is {run['state']}")


def ps(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(help="Only runs in this state, as running.")] = None,
    thread: Annotated[str | None, typer.Option("--thread", "-t", help="Only this thread's.")] = None,
    limit: LimitOption = 20,
    *,
    as_json: JsonOption = False,
) -> None:
    """List your runs, newest first.

    Example: headrace ps --state running
    """
    session = session_of(ctx)
    with session.client() as client:
        runs = client.runs(thread_id=thread, state=state, page_size=limit)["runs"]
    if as_json:
        session.print_json(runs)
        return
    table = Table("run", "agent", "state", "attempt", "created", "total ms", box=None, pad_edge=False)
    for item in runs:
        timing = item["timing"]
        total = timing["total_latency_ms"]
        wait = item.get("wait")
        state_text = f"{item['state']} ({wait['wait_reason']})" if wait else item["state"]
        table.add_row(
            item["run_id"],
            item["agent"],
            state_text,
            str(item["attempt"]),
            (timing["created_at"] or "–")[:19],
            "–" if total is None else str(total),
        )
    session.out.print(table)


def result(ctx: typer.Context, run_id: RunArgument, *, as_json: JsonOption = False) -> None:
    """Show what a run ended with, and its times.

    Example: headrace result 0196f3c2-… --json
    """
    session = session_of(ctx)
    with session.client() as client:
        ended = client.result(run_id)
    if as_json:
        session.print_json(ended)
        return
    output = ended["output"]
    if output is not None:
        session.out.print(text_of(output["content"]), markup=False, soft_wrap=True)
    elif ended.get("values") is not None:
        session.print_json(ended["values"])
    session.about.print(timing_table(ended["run"]["timing"]))
    raise typer.Exit(tell_end(session, ended["run"]["state"], ended["run"]))


def watch(
    session: Session,
    client: Client,
    run_id: str,
    *,
    after: str | None,
    modes: str | None = None,
    as_json: bool,
) -> None:
    """Stream a run to its end, print its latencies and leave with its exit code."""
    live = LiveRun(session.out, session.about)
    try:
        for event in client.follow(run_id, after=after, modes=modes.split(",") if modes else None):
            if not as_json:
                live.show(event)
    except KeyboardInterrupt:
        live.note(f"The run goes on. headrace follow {run_id} | headrace cancel {run_id}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    live.break_line()
    ended = client.result(run_id)
    if as_json:
        session.print_json(ended)
        raise typer.Exit(0 if ended["run"]["state"] == "completed" else EXIT_FAILED)
    session.about.print(timing_table(ended["run"]["timing"]))
    raise typer.Exit(tell_end(session, ended["run"]["state"], ended["run"]))


def tell_end(session: Session, state: RunState, run: Run) -> int:
    """Print how a run ended, with its error; returns the exit code."""
    style = {"completed": "green", "failed": "red"}.get(state, "yellow")
    session.about.print(f"[{style}]{state}[/{style}]{_usage(run['usage'])}")
    error = run["error"]
    if error:
        session.about.print(f"{error['type']}: {error['message']}", markup=False, soft_wrap=True)
    return 0 if state == "completed" else EXIT_FAILED


def _usage(usage: dict[str, Any]) -> str:
    total = usage.get("total_tokens")
    return f"  [dim]{total} tokens[/dim]" if total else ""
