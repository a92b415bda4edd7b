"""Commands about threads: list, delete, read one's transcript; and the agents that threads talk to."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from headrace_client.client import Client
from headrace_client.commands.common import FriendlyGroup, JsonOption, LimitOption, Session, session_of
from headrace_client.render import printable, shortened, text_of
from headrace_client.types import Message, Run

CUT_SHORT = frozenset({"cancelled", "failed"})
"""Ends of runs that may leave an answer incomplete, or none."""

app = typer.Typer(cls=FriendlyGroup)


@app.callback(invoke_without_command=True)
def threads(ctx: typer.Context, limit: LimitOption = 20, *, as_json: JsonOption = False) -> None:
    """List your threads, last changed first, or delete one.

    Example: headrace threads --limit 5
    """
    if ctx.invoked_subcommand is not None:
        return
    session = session_of(ctx)
    with session.client() as client:
        found = client.threads(page_size=limit)["threads"]
    if as_json:
        session.print_json(found)
        return
    table = Table("thread", "agent", "state", "updated", "title", box=None, pad_edge=False)
    for thread in found:
        table.add_row(
            thread["thread_id"],
            thread["agent"],
            thread["state"],
            thread["updated_at"][:19],
            shortened(thread["title"] or ""),
        )
    session.out.print(table)


@app.command()
def delete(
    ctx: typer.Context,
    thread_id: Annotated[str, typer.Argument(metavar="THREAD", help="Id of a thread.")],
    *,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel what is active in it, too.")] = False,
) -> None:
    """Delete a thread with its messages and runs.

    Example: headrace threads delete 0196f3c2-… --cancel
    """
    session = session_of(ctx)
    with session.client() as client:
        client.delete_thread(thread_id, cancel=cancel)
    session.about.print(f"deleted {thread_id}", markup=False)


def messages(
    ctx: typer.Context,
    thread_id: Annotated[str, typer.Argument(metavar="THREAD", help="Id of a thread.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show a thread's transcript, oldest message first.

    Example: headrace messages 0196f3c2-…
    """
    session = session_of(ctx)
    with session.client() as client:
        found, runs = _transcript(client, thread_id)
    if as_json:
        session.print_json(found)
        return
    for run_id, group in groupby(found, key=lambda message: message.get("run_id")):
        run = runs.get(str(run_id))
        of_run = list(group)
        for message in of_run:
            _show(session, message, run)
        if run is not None and run["state"] in CUT_SHORT and not any(map(_has_text, of_run)):
            session.out.print(f"({run['state']} before any text)", style="yellow", markup=False)


def agents(ctx: typer.Context, *, as_json: JsonOption = False) -> None:
    """List the agents that you can talk to.

    Example: headrace agents
    """
    session = session_of(ctx)
    with session.client() as client:
        found = client.agents()
    if as_json:
        session.print_json(found)
        return
    table = Table("agent", "description", box=None, pad_edge=False)
    for agent in found:
        table.add_row(agent["name"], shortened(agent["description"] or ""))
    session.out.print(table)


def _transcript(client: Client, thread_id: str) -> tuple[list[Message], dict[str, Run]]:
    found: list[Message] = []
    runs: dict[str, Run] = {}
    token: str | None = None
    while True:
        page = client.messages(thread_id, page_token=token)
        found += page["messages"]
        runs |= {run["run_id"]: run for run in page["runs"]}
        token = page["next_page_token"]
        if not token:
            return found, runs


def _has_text(message: Message) -> bool:
    return message["role"] == "assistant" and bool(text_of(message["content"]).strip())


def _show(session: Session, message: Message, run: Run | None) -> None:
    partial = ""
    if message["partial"]:
        why = f": the run was {run['state']}" if run is not None and run["state"] == "cancelled" else ""
        why = ": the run failed" if run is not None and run["state"] == "failed" else why
        partial = f" [yellow](incomplete{why})[/yellow]"
    name = f" {message['name']}" if message["name"] else ""
    session.out.print(f"[bold]{message['role']}[/bold]{escape(name)}{partial}")
    if message["reasoning"]:
        session.out.print(printable(message["reasoning"]), style="dim italic", markup=False)
    if text := text_of(message["content"]):
        session.out.print(printable(text), markup=False, soft_wrap=True)
    for call in message["tool_calls"]:
        session.out.print(f"⚙ {call['name']} {shortened(call['args'])}", style="cyan", markup=False)
