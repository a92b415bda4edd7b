"""Commands of the deployment on this machine; they exist where `headrace-deploy` is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import typer
import typer.main

from headrace_client.errors import NotConfigured

NAMES = ("up", "down", "status", "logs", "doctor")
MODULE = "headrace_deploy.commands"


def deployment_app() -> typer.Typer | None:
    """Return the deployment's commands, None where they are not installed."""
    if importlib.util.find_spec("headrace_deploy") is None or importlib.util.find_spec(MODULE) is None:
        return None
    found: Any = importlib.import_module(MODULE).app
    return found if isinstance(found, typer.Typer) else None


def mount(app: typer.Typer) -> None:
    """Add the deployment's commands to `app`, or ones that say how to get them."""
    found = deployment_app()
    if found is not None:
        app.registered_commands.extend(found.registered_commands)
        app.registered_groups.extend(found.registered_groups)
        return
    for name in NAMES:
        app.command(name, help="Not installed here: it comes with a checkout of Headrace.")(_absent)


def up() -> None:
    """Start the deployment unless it runs; the command's own output is shown.

    Raises NotConfigured where there is no deployment to start.
    """
    found = deployment_app()
    if found is None:
        _absent()
    command: Any = typer.main.get_command(found) if found else None
    try:
        code = command.main(["up"], prog_name="headrace", standalone_mode=False)
    finally:
        sys.stdout.flush()  # into a file it would come after what others print meanwhile
    if code:
        raise typer.Exit(int(code))


def _absent() -> None:
    raise NotConfigured(
        "this command starts and stops servers of a checkout, and headrace-deploy is not installed here; "
        "clone Headrace and run `make setup`, or set HEADRACE_URL to use a server elsewhere",
        reason="NO_DEPLOYMENT",
    )
