"""Commands about API keys, and about service tokens, which are keys of programs that speak gRPC."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headrace_client.commands.common import FriendlyGroup, JsonOption, refuse, session_of
from headrace_client.config import load_state, state_path

SERVICE_SCOPE = "service"
TOKEN_BYTES = 32
SECONDS_PER_DAY = 86_400
_SERVICE_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")

app = typer.Typer(cls=FriendlyGroup, no_args_is_help=True, help="Create, list and revoke API keys.")


@app.command()
def create(
    ctx: typer.Context,
    label: Annotated[str, typer.Argument(help="What the key is for; with --scope service the caller's name.")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="read, write, admin (repeatable), or service.")] = None,
    user: Annotated[str | None, typer.Option(help="User that the key speaks for; yours by default.")] = None,
    days: Annotated[int | None, typer.Option(min=1, max=3650, help="It ends after so many days.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Create an API key and print it, this once.

    With --scope service it makes a gRPC token for a program inside the deployment.

    Example: headrace keys create ci --scope write
    """
    session = session_of(ctx)
    scopes = scope or ["write"]
    if SERVICE_SCOPE in scopes:
        if scopes != [SERVICE_SCOPE] or not _SERVICE_NAME.fullmatch(label):
            raise refuse(
                ctx, "a service token has no other scope and needs a name: headrace keys create my-tool --scope service"
            )
        token = _add_service_token(ctx, label)
        if as_json:
            session.print_json({"service": label, "token": token})
        else:
            session.out.print(token, soft_wrap=True)
            session.about.print("[dim]gRPC metadata: authorization: Bearer <this>. It is not shown again.[/dim]")
        return
    with session.client() as client:
        made = client.create_key(
            label, scopes=scopes, uid=user, expires_in_seconds=days * SECONDS_PER_DAY if days else None
        )
    if as_json:
        session.print_json(made)
        return
    session.out.print(made["key"], soft_wrap=True, markup=False)
    session.about.print(f"[dim]{made['key_id']}, scopes {', '.join(made['scopes'])}. It is not shown again.[/dim]")


@app.command("list")
def list_keys(ctx: typer.Context, *, as_json: JsonOption = False) -> None:
    """List API keys, without their secrets.

    Example: headrace keys list
    """
    session = session_of(ctx)
    with session.client() as client:
        found = client.keys()
    if as_json:
        session.print_json(found)
        return
    table = Table("key", "user", "label", "scopes", "created", "state", box=None, pad_edge=False)
    for key in found:
        ended = (
            "revoked" if key["revoked_at"] else (f"until {key['expires_at'][:19]}" if key["expires_at"] else "valid")
        )
        table.add_row(key["key_id"], key["uid"], key["label"], " ".join(key["scopes"]), key["created_at"][:19], ended)
    session.out.print(table)


@app.command()
def revoke(ctx: typer.Context, key_id: Annotated[str, typer.Argument(metavar="KEY", help="Id from the list.")]) -> None:
    """Revoke an API key; open streams with it end within 5 s.

    Example: headrace keys revoke 4f0c1d2e3a4b
    """
    session = session_of(ctx)
    with session.client() as client:
        client.revoke_key(key_id)
    session.about.print(f"revoked {key_id}", markup=False)


def _add_service_token(ctx: typer.Context, name: str) -> str:
    """Add a token's digest to the deployment's tokens file, which every service reads again when it changes."""
    here = state_path()
    if here is None:
        raise refuse(ctx, "service tokens belong to a deployment on this machine; run `headrace up` first")
    path = Path(load_state().get("tokens_file") or here.with_name("tokens.json"))
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tokens = json.loads(path.read_text())
        if name in tokens:
            raise refuse(ctx, f"{name} has a token already; choose another name")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        tokens[name] = hashlib.sha256(token.encode()).hexdigest()
        temporary = path.with_suffix(".new")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(tokens, file, indent=1)
        temporary.replace(path)
    return token
