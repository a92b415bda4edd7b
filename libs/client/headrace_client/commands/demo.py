"""`headrace demo`: the whole product in one command, from nothing running to a streamed run with a tool call."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from headrace_client.commands import deployment
from headrace_client.commands.common import EXIT_FAILED, session_of
from headrace_client.commands.ending import show_rest, tell_end
from headrace_client.config import find_target
from headrace_client.render import LiveRun

QUESTION = "What is 1234 × 5678? Please calculate it exactly."
AGENT = "assistant"


def demo(
    ctx: typer.Context, question: Annotated[str, typer.Argument(help="What to ask the assistant.")] = QUESTION
) -> None:
    """Start Headrace if nothing runs, let an agent use a tool and answer, and show where the time went.

    Exit code 0 only if the run is `completed`. The servers stay up; `make down` stops them.

    Example: headrace demo
    """
    session = session_of(ctx)
    if session.base_url is None and not os.environ.get("HEADRACE_URL"):
        deployment.up()
    target = find_target(session.base_url)
    with session.client() as client:
        thread = client.create_thread(AGENT, title="Demo")
        request = client.submit(thread["thread_id"], question)
        run_id = request["run_id"]
        session.about.print(f"\n[bold]you[/bold]  {question}\n[dim]run  {run_id}[/dim]\n")
        with LiveRun(session.out, session.about) as live:
            for event in client.follow(run_id):
                live.show(event)
        ended = client.result(run_id)
    show_rest(session, live, ended)
    session.about.print()
    code = tell_end(session, ended["run"], asked=live.asked)
    if code == 0 and ended["output"] is None:
        session.about.print("[red]the run has no output[/red]")
        code = EXIT_FAILED
    url = f"{target.base_url}/v1/runs/{run_id}/events"
    session.out.print(f"\naddress  {target.base_url}\nkey      {target.api_key}", markup=False, soft_wrap=True)
    session.out.print(f"\ncurl -N -H 'Authorization: Bearer {target.api_key}' {url}", markup=False, soft_wrap=True)
    session.about.print("\n[dim]Headrace stays up; `make down` stops it.[/dim]")
    raise typer.Exit(code)
