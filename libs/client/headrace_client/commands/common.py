"""What all commands share: the connection, the two consoles, and how errors reach a person."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console

from headrace_client import errors
from headrace_client.calls import PAGE_MAX
from headrace_client.client import Client
from headrace_client.commands.next_steps import next_step

EXIT_FAILED = 1
"""The command understood you and could not do it, or the run did not end `completed`."""

EXIT_USAGE = 2
"""The call itself is wrong: the same again cannot help."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=PAGE_MAX, help="Show at most so many.")]


PLAIN_WIDTH = 200
"""Columns of a table that goes into a file or a pipe, where nothing says how wide the reader is."""


def console(*, stderr: bool) -> Console:
    """Return a console; one that is no terminal does not wrap tables at 80 columns."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else PLAIN_WIDTH)


@dataclass
class Session:
    """One invocation of the command."""

    base_url: str | None = None
    out: Console = field(default_factory=lambda: console(stderr=False))
    about: Console = field(default_factory=lambda: console(stderr=True))

    def client(self) -> Client:
        """Connect to the server; raises NotConfigured."""
        return Client(self.base_url)

    def print_json(self, value: Any) -> None:
        """Print one JSON value on one line of standard output: every --json is one, a list is an array."""
        self.out.file.write(json.dumps(value, ensure_ascii=False) + "\n")
        self.out.file.flush()


def session_of(ctx: typer.Context) -> Session:
    """Return the session that the top-level command made."""
    return ctx.ensure_object(Session)


class FriendlyGroup(typer.core.TyperGroup):
    """A command group whose expected errors become two lines and an exit code instead of a traceback."""

    def get_params(self, ctx: Any) -> Any:
        """Return the group's own parameters; a flag takes no value, so its help names no type."""
        return _flags_without_type(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command of the group, its flags treated likewise."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            _flags_without_type(found.get_params(ctx))
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except errors.HeadraceError as error:
            about = console(stderr=True)
            named = f" ({error.reason})" if error.reason else ""
            about.print(f"[red]error:[/red] {_escaped(error.detail)}{named}", soft_wrap=True)
            if step := next_step(error):
                about.print(step, style="dim", markup=False, soft_wrap=True)
            raise typer.Exit(EXIT_USAGE if isinstance(error, errors.BadRequest) else EXIT_FAILED) from None


def _flags_without_type(params: Any) -> Any:
    for param in params:
        if isinstance(param, typer.core.TyperOption) and param.is_bool_flag:
            param.metavar = ""
    return params


def refuse(ctx: typer.Context, told: str) -> typer.Exit:
    """Print why the command does not do it; returns the exit to raise."""
    session_of(ctx).about.print(f"[red]error:[/red] {_escaped(told)}")
    return typer.Exit(EXIT_FAILED)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
