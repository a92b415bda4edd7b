"""The commands of a deployment on this machine: up, down, status, logs, doctor. `headrace` mounts them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from headrace_kit.budget import BudgetError
from headrace_kit.migrate import MigrationError
from headrace_kit.settings import SettingsError
from rich.console import Console
from rich.table import Table

from headrace_deploy import doctor as examination
from headrace_deploy import logview, probes
from headrace_deploy.binaries import ServersError, find_postgres, find_redis, servers_choice
from headrace_deploy.prepare import GraphsError
from headrace_deploy.stack import Stack, StackError
from headrace_deploy.state import ServiceState, State, StateError, default_run_dir, load_state, require_state

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A whole Headrace on this machine.")

_EXPECTED = (ServersError, BudgetError, GraphsError, MigrationError, SettingsError, StackError, StateError)
PIPE_COLUMNS = 200
_COLORS = {"running": "green", "starting": "yellow", "backing_off": "yellow", "failed": "red", "stopped": "dim"}


@app.command()
def up() -> None:
    """Start PostgreSQL, Redis and all services, and wait until they are ready.

    Variables: HEADRACE_LANGGRAPH_JSON (your graphs),
    HEADRACE_MODEL_BASE_URL, _MODEL_NAME and _MODEL_API_KEY (your model),
    HEADRACE_EXECUTORS, _PORT, _SERVERS, _POSTGRES_URL, _REDIS_URL.
    Changed ones take effect after `headrace down`.

    Example: HEADRACE_PORT=8080 headrace up
    """
    stack = Stack(default_run_dir(), say=_say)
    try:
        state = stack.up()
    except _EXPECTED as error:
        _fail(str(error))
    key = "revoked; `make down && make up` makes a new one" if stack.key_revoked else state.api_key
    print(f"\n  address   {state.base_url}\n  key       {key}\n  stop with `make down`")


@app.command()
def down() -> None:
    """Stop exactly what `headrace up` started; data and keys stay.

    Example: headrace down
    """
    try:
        ran = Stack(default_run_dir(), say=_say).down()
    except _EXPECTED as error:
        _fail(str(error))
    print("  stopped" if ran else "  nothing was running")


@app.command()
def status() -> None:
    """Show each server and service: where it is, how it is. Exit code 1 when one is not ready.

    Example: headrace status
    """
    try:
        state = require_state(default_run_dir())
    except StateError as error:
        _fail(str(error))
    answers = probes.ready(state)
    # A pipe has no width: nothing is cut there.
    Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS).print(_status_table(state, answers))
    if not (state.supervisor and state.supervisor.find()):
        _fail("the supervisor does not run; start with `make up`")
    if late := [name for name, answer in answers.items() if answer != "ready"]:
        _fail(f"not ready: {', '.join(late)}; see `headrace logs {late[0]}`")


@app.command()
def logs(
    service: Annotated[str, typer.Argument(help="One service; all without it.")] = "",
    lines: Annotated[int, typer.Option(min=0, help="How many of the last lines of each to begin with.")] = 20,
    follow: Annotated[
        bool | None, typer.Option(help="Go on until Ctrl-C; default: only at a terminal, while something runs.")
    ] = None,
) -> None:
    """Show the logs of all services or of one.

    Example: headrace logs api-gateway --lines 100 --no-follow
    """
    try:
        state = load_state(default_run_dir())
        runs = bool(state and state.supervisor and state.supervisor.find())
        if follow is None:
            follow = runs and sys.stdout.isatty()
        if state and not runs:
            typer.secho("nothing runs; these are the last lines", err=True, color=_color())
        color = sys.stdout.isatty() and _color() is not False
        logview.show(default_run_dir() / "logs", only=service, lines=lines, follow=follow, color=color)
    except StateError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        return


@app.command()
def doctor() -> None:
    """Examine this machine and deployment. Exit code 1 when something must be repaired.

    Example: headrace doctor
    """
    findings = examination.examine(default_run_dir())
    for finding in findings:
        color = {"ok": "green", "warn": "yellow", "fail": "red"}[finding.level]
        typer.secho(f"  {finding.level:<4} ", fg=color, nl=False, color=_color())
        print(f"{finding.name:<20} {finding.detail}")
        if finding.next_step:
            print(f"       {'':<20} → {finding.next_step}")
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(1)


@app.command("servers", hidden=True)
def servers() -> None:
    """Print which PostgreSQL and Redis `up` would start; `make setup` ends with it."""
    try:
        choice = servers_choice()
        for program in (find_postgres(choice), find_redis(choice)):
            print(f"  {program.product} {program.version} ({program.source}: {program.path})")
    except ServersError as error:
        _fail(str(error))


def _status_table(state: State, answers: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("service", "status", "ready", "pid", "address", "restarts", ""):
        table.add_column(heading, no_wrap=heading != "")
    for name, server in (("postgresql", state.postgres), ("redis", state.redis)):
        if server is None:
            continue
        if not server.managed:
            table.add_row(server.label.partition(",")[0] if server.version else name, "yours")
            continue
        process = server.process.find() if server.process else None
        label = _colored("running" if process else "stopped")
        known = server.label.partition(",")[0] if server.product else f"{name} {server.version}"
        speaks = f"speaks Redis {server.speaks}" if server.speaks else ""
        table.add_row(known, label, "", _pid(process), f"127.0.0.1:{server.port}", "", speaks)
    for name, service in state.services.items():
        process = service.process.find() if service.process else None
        status = service.status if process or service.status != "running" else "stopped"
        table.add_row(
            name,
            _colored(status),
            answers[name],
            _pid(process),
            service.address,
            str(service.restarts),
            _reason(service),
        )
    return table


def _reason(service: ServiceState) -> str:
    return "" if service.status == "running" else service.message


def _colored(status: str) -> str:
    return f"[{_COLORS[status]}]{status}[/]"


def _pid(process: object) -> str:
    return str(getattr(process, "pid", ""))


def _fail(message: str) -> None:
    typer.secho(message, fg="red", err=True, color=_color())
    sys.exit(1)


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _color() -> bool | None:
    # None leaves it to whether the stream is a terminal.
    return False if os.environ.get("NO_COLOR") else None


if __name__ == "__main__":
    app()
