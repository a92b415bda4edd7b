"""The `headrace` command. Exit codes: 0 done, 1 not done, 2 wrong usage."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from headrace_client.commands import deployment, keys, runs, threads
from headrace_client.commands.common import FriendlyGroup, Session
from headrace_client.commands.demo import demo


def build() -> typer.Typer:
    """Return the command with all its subcommands."""
    app = typer.Typer(
        cls=FriendlyGroup,
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,  # locals hold keys
        help="Run LangGraph agents as durable runs. The server comes from --url or HEADRACE_URL (with "
        "HEADRACE_API_KEY), else from the .run folder of the checkout you are in.",
    )

    @app.callback()
    def options(
        ctx: typer.Context,
        url: Annotated[str | None, typer.Option(help="Address of the server, as http://localhost:8000.")] = None,
        *,
        show_version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        ctx.obj = Session(base_url=url)

    for command in (runs.run, runs.follow, runs.cancel, runs.ps, runs.result, threads.messages, threads.agents):
        app.command()(command)
    app.add_typer(threads.app, name="threads")
    app.add_typer(keys.app, name="keys")
    app.command()(demo)
    deployment.mount(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {version('headrace-client')}")
        raise typer.Exit


def main() -> None:
    """Run the command."""
    build()(prog_name="headrace")
