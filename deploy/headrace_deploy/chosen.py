"""What the user chose for `up` by environment variables: checked all at once, and remembered to tell a later change.

Invariant: no secret is remembered; a key and an address that may hold a password are kept as sha256 only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from headrace_kit.auth import sha256_hex
from headrace_kit.settings import SettingsError

from headrace_deploy.roles import find_budget
from headrace_deploy.state import State

MAX_EXECUTORS = 64
"""The services' own bound of HEADRACE_EXECUTORS."""
MAX_PORT = 65535

Problem = str | None


def check(environ: Mapping[str, str]) -> None:
    """Look at every variable that `up` reads itself; the services check the rest of theirs.

    Raises SettingsError with one line for each variable that is wrong, never with the value of one that may be secret.
    """
    problems = [
        f"{name}: {problem}"
        for name, judge in _JUDGES.items()
        if (value := environ.get(name)) and (problem := judge(value))
    ]
    if environ.get("HEADRACE_MODEL_BASE_URL") and not environ.get("HEADRACE_MODEL_NAME"):
        problems.append(
            "HEADRACE_MODEL_NAME: not set, but HEADRACE_MODEL_BASE_URL is; set it to the model's name at that address"
        )
    if problems:
        raise SettingsError("\n".join(problems))


def remember(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set, in the form in which they are compared."""
    return {name: _form(name, environ[name]) for name in _REMEMBERED if environ.get(name)}


def changed(state: State, environ: Mapping[str, str]) -> list[str]:
    """Return the variables that are set to something else than what the running deployment was started with.

    A variable that is not set now is no difference; one that names what was chosen without it is none either.
    """
    if state.chosen is None:  # started before this was remembered
        return []
    effective = _effective(state) | state.chosen
    return [name for name, value in remember(environ).items() if value != effective.get(name)]


def forgotten(state: State, environ: Mapping[str, str]) -> list[str]:
    """Return a line for each variable of consequence that the last start had and this one has not."""
    return [
        f"the last start had {name}{_shown(state, name)}, this one has not: {consequence}"
        for name, consequence in _CONSEQUENCES.items()
        if name in (state.chosen or {}) and not environ.get(name)
    ]


def executors(environ: Mapping[str, str], *, default: int) -> int:
    """Return how many executors to start; `environ` has been checked."""
    return int(environ.get("HEADRACE_EXECUTORS") or default)


def port(environ: Mapping[str, str]) -> int:
    """Return the port that the user wants for the HTTP API, 0 for any; `environ` has been checked."""
    return int(environ.get("HEADRACE_PORT") or 0)


def _number(low: int, high: int) -> Callable[[str], Problem]:
    def judge(value: str) -> Problem:
        if re.fullmatch(r"\d{1,9}", value, re.ASCII) and low <= int(value) <= high:
            return None
        return f"{value[:40]!r} is not a whole number from {low} to {high}"

    return judge


def _address(*schemes: str, example: str) -> Callable[[str], Problem]:
    def judge(value: str) -> Problem:
        wanted = f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)} and name a host, as {example}"
        try:
            parts = urlsplit(value)
            _ = parts.port  # reading it checks it
        except ValueError:
            return wanted
        return None if parts.scheme in schemes and (parts.hostname or parts.scheme == "unix") else wanted

    return judge


def _servers(value: str) -> Problem:
    return None if value in ("system", "wheels") else f"{value[:40]!r} is neither system nor wheels"


def _deployment(value: str) -> Problem:
    # It is part of the names of roles and a database; 63 bytes is PostgreSQL's bound, the longest role takes 12.
    good = re.fullmatch(r"[a-z][a-z0-9_]{0,49}", value, re.ASCII)
    return None if good else f"{value[:60]!r} must be a small letter and up to 49 small letters, digits or _"


def _file(value: str) -> Problem:
    return None if Path(value).is_file() else f"no file {value}"


def _files(value: str) -> Problem:
    absent = [path for path in value.split(os.pathsep) if path and not Path(path).is_file()]
    return f"no file {', '.join(absent)}" if absent else None


_JUDGES: dict[str, Callable[[str], Problem]] = {
    "HEADRACE_BUDGET_FILE": _file,
    "HEADRACE_DEPLOYMENT": _deployment,
    "HEADRACE_EXECUTORS": _number(1, MAX_EXECUTORS),
    "HEADRACE_LANGGRAPH_JSON": _files,
    "HEADRACE_MODEL_BASE_URL": _address("http", "https", example="https://models.example/v1"),
    "HEADRACE_PORT": _number(1, MAX_PORT),
    "HEADRACE_POSTGRES_URL": _address(
        "postgresql", "postgres", example="postgresql://user:password@host:5432/postgres"
    ),
    "HEADRACE_REDIS_URL": _address("redis", "rediss", "unix", example="redis://:password@host:6379/0"),
    "HEADRACE_SERVERS": _servers,
}

_SECRET = frozenset(
    {
        "HEADRACE_MODEL_API_KEY",
        "HEADRACE_MODEL_BASE_URL",
        "HEADRACE_POSTGRES_URL",
        "HEADRACE_REDIS_URL",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    }
)
_REMEMBERED = (
    *_JUDGES,
    "HEADRACE_FIRST_KEY_UID",
    "HEADRACE_LOG_FORMAT",
    "HEADRACE_LOG_LEVEL",
    "HEADRACE_MODEL_API_KEY",
    "HEADRACE_MODEL_NAME",
    "HEADRACE_REDIS_SHARDS",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)
_CONSEQUENCES = {
    "HEADRACE_LANGGRAPH_JSON": "its graphs are not served; `make down`, set it and `make up` brings them back",
    "HEADRACE_MODEL_BASE_URL": "the scripted model answers",
    "HEADRACE_POSTGRES_URL": "a private PostgreSQL is used, with data of its own",
    "HEADRACE_REDIS_URL": "a private Redis is used",
    "HEADRACE_EXECUTORS": "the default applies",
}


def _form(name: str, value: str) -> str:
    if name == "HEADRACE_LANGGRAPH_JSON":
        return os.pathsep.join(str(Path(path).absolute()) for path in value.split(os.pathsep) if path)
    if name == "HEADRACE_BUDGET_FILE":
        return str(Path(value).absolute())
    if name in ("HEADRACE_EXECUTORS", "HEADRACE_PORT"):
        return str(int(value))
    if name == "HEADRACE_MODEL_BASE_URL":
        value = value.rstrip("/")
    return sha256_hex(value) if name in _SECRET else value


def _effective(state: State) -> dict[str, str]:
    # What was chosen for the user where no variable was set.
    servers = {server.source for server in (state.postgres, state.redis) if server and server.managed}
    gateway = state.services.get("api-gateway")
    return {
        "HEADRACE_BUDGET_FILE": str(find_budget({}).absolute()),
        "HEADRACE_DEPLOYMENT": state.deployment,
        "HEADRACE_EXECUTORS": str(state.executors),
        "HEADRACE_FIRST_KEY_UID": state.uid,
        "HEADRACE_PORT": gateway.address.rpartition(":")[2] if gateway else "",
        "HEADRACE_SERVERS": servers.pop() if len(servers) == 1 else "",
    }


def _shown(state: State, name: str) -> str:
    return "" if name in _SECRET or not state.chosen else f"={state.chosen[name]}"
