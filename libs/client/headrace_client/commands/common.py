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

EXIT_FAILED = 1
"""The command understood you and could not do it, or the run did not end `completed`."""

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
        """Print one JSON value on one line of standard output."""
        self.out.file.write(json.dumps(value, ensure_ascii=False) + "\n")
        self.out.file.flush()


def session_of(ctx: typer.Context) -> Session:
    """Return the session that the top-level command made."""
    return ctx.ensure_object(Session)


NEXT_STEP: dict[type[errors.HeadraceError], str] = {
    errors.NotConfigured: "",
    errors.Unreachable: "Is it up? `headrace status` shows; `headrace up` starts it.",
    errors.NotAuthenticated: "Set HEADRACE_API_KEY to a valid key; `headrace keys create` makes one.",
    errors.Forbidden: "Use a key with that scope; `headrace keys create --scope …` makes one.",
    errors.NotFound: "`headrace ps` lists your runs, `headrace threads` your threads.",
    errors.Conflict: "`headrace ps` shows what is active.",
    errors.RateLimited: "Wait and try again; `headrace ps` shows what is active.",
    errors.ServerError: "`headrace status` and `headrace logs` show why.",
    errors.StreamLost: "The run goes on without viewers; `headrace follow` resumes.",
    errors.StreamCorrupt: "This is a defect of the server; please report it.",
}
"""What to do about each error."""


class FriendlyGroup(typer.core.TyperGroup):
    """A command group whose expected errors become two lines and exit code 1 instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except errors.HeadraceError as error:
            about = console(stderr=True)
            named = f" ({error.reason})" if error.reason else ""
            about.print(f"[red]error:[/red] {_escaped(error.detail)}{named}", soft_wrap=True)
            step = NEXT_STEP.get(type(error), "")
            if isinstance(error, errors.RateLimited) and error.retry_after_seconds:
                step = f"Try again in {error.retry_after_seconds:g} s. " + step
            if step:
                about.print(f"[dim]{step}[/dim]", soft_wrap=True)
            raise typer.Exit(EXIT_FAILED) from None


def refuse(ctx: typer.Context, told: str) -> typer.Exit:
    """Print why the command does not do it; returns the exit to raise."""
    session_of(ctx).about.print(f"[red]error:[/red] {_escaped(told)}")
    return typer.Exit(EXIT_FAILED)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
