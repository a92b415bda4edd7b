"""Commands about runs: submit and watch, follow, cancel, list, look at the result."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from headrace_client.client import Client
from headrace_client.commands.common import EXIT_FAILED, JsonOption, LimitOption, Session, session_of
from headrace_client.commands.ending import exit_code, show_output, show_rest, tell_end
from headrace_client.errors import BadRequest
from headrace_client.following import cursor
from headrace_client.render import LiveRun

AGENT = "assistant"
"""Who is talked to unless --agent says otherwise."""
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
    text: Annotated[str | None, typer.Argument(help="What to say; `-` reads it from standard input.")] = None,
    graph_input: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="JSON", help="Input of a graph that takes no messages; `-` as for text."),
    ] = None,
    thread: Annotated[str | None, typer.Option("--thread", "-t", help="Go on in this thread.")] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help=f"Agent of the new thread; {AGENT} by default.")
    ] = None,
    strategy: Annotated[Strategy | None, typer.Option(help="What to do when the thread is busy.")] = None,
    key: Annotated[str | None, typer.Option("--idempotency-key", help="Makes a repeated command safe.")] = None,
    *,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the run's id and return.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a message, or any input of a graph, and stream the answer.

    The answer goes to standard output, all else to standard error. Exit code 0 only if the run is `completed`.

    Example: headrace run "What is 6 × 7?"

    Example: headrace run --agent my-graph --input '{"customer": 7}'
    """
    session = session_of(ctx)
    said = _submission(text, graph_input)
    options = {"multitask_strategy": strategy.value} if strategy else {}
    with session.client() as client:
        if thread is None:
            thread = client.create_thread(agent or AGENT)["thread_id"]
        elif agent is not None and (its := client.get_thread(thread)["agent"]) != agent:
            raise typer.BadParameter(
                f"thread {thread} talks to agent {its}, and a thread keeps its agent; leave --agent out",
                param_hint="--agent",
            )
        request = client.submit(thread, idempotency_key=key, **said, **options)
        if detach:
            if as_json:
                session.print_json(request)
            else:
                session.out.print(request["run_id"])
            return
        if not as_json:
            session.about.print(f"[dim]thread {thread}\nrun    {request['run_id']}[/dim]")
        watch(session, client, request["run_id"], after=None, as_json=as_json)


def _submission(text: str | None, graph_input: str | None) -> dict[str, Any]:
    """Return what is submitted; raises BadParameter unless it is one text or one JSON value."""
    if (text is None) == (graph_input is None):
        raise typer.BadParameter(
            'say something or give --input; example: headrace run "What is 6 × 7?"', param_hint="TEXT"
        )
    told = text if graph_input is None else graph_input
    told = sys.stdin.read() if told == "-" else str(told)
    if graph_input is None:
        if not told.strip():
            raise typer.BadParameter('there is nothing to say; example: headrace run "Hello"', param_hint="TEXT")
        return {"message": told}
    try:
        value = json.loads(told)
    except ValueError as error:
        raise typer.BadParameter(f"it is not JSON: {error}; example: '{{\"n\": 7}}'", param_hint="--input") from None
    if value is None:
        raise typer.BadParameter("null is no input", param_hint="--input")
    return {"input": value}


def _cursor(after: str | None) -> str | None:
    try:
        if after is not None:
            cursor(after)
    except BadRequest as error:
        raise typer.BadParameter(error.detail) from None
    return after


def follow(
    ctx: typer.Context,
    run_id: RunArgument,
    after: Annotated[str | None, typer.Option(callback=_cursor, help="Begin behind this event id, as 1-17.")] = None,
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
    show_output(session, ended)
    raise typer.Exit(tell_end(session, ended["run"]))


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
    wanted = modes.split(",") if modes else None
    with LiveRun(session.out, session.about) as live:
        try:
            for event in client.follow(run_id, after=after, modes=wanted):
                if not as_json:
                    live.show(event)
        except KeyboardInterrupt:
            live.note(f"The run goes on. headrace follow {run_id} | headrace cancel {run_id}")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    ended = client.result(run_id)
    if as_json:
        session.print_json(ended)
        raise typer.Exit(exit_code(ended["run"]))
    if after is None and (wanted is None or "messages" in wanted):  # else only a part was asked for
        show_rest(session, live, ended)
    raise typer.Exit(tell_end(session, ended["run"], asked=live.asked))
