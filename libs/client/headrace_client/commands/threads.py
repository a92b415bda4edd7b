"""Commands about threads and agents."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from headrace_client.commands.common import JsonOption, LimitOption, session_of
from headrace_client.render import printable, shortened, text_of


def threads(ctx: typer.Context, limit: LimitOption = 20, *, as_json: JsonOption = False) -> None:
    """List your threads, last changed first.

    Example: headrace threads --limit 5
    """
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
    token: str | None = None
    with session.client() as client:
        while True:
            page = client.messages(thread_id, page_token=token)
            for message in page["messages"]:
                if as_json:
                    session.print_json(message)
                    continue
                partial = " (incomplete)" if message["partial"] else ""
                name = f" {message['name']}" if message["name"] else ""
                session.out.print(f"[bold]{message['role']}[/bold]{name}{partial}")
                if message["reasoning"]:
                    session.out.print(printable(message["reasoning"]), style="dim italic", markup=False)
                session.out.print(printable(text_of(message["content"])), markup=False, soft_wrap=True)
                for call in message["tool_calls"]:
                    session.out.print(f"⚙ {call['name']} {shortened(call['args'])}", style="cyan", markup=False)
            token = page["next_page_token"]
            if not token:
                return


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
