"""What must stand before services start: figures, servers, roles, schema, addresses, keys. The outcome is the state.

Nothing here is lost on a second run: passwords, tokens, key and ports are kept where they are known.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import redis
from headrace_kit import budget as budgets
from headrace_kit.auth import sha256_hex
from headrace_kit.budget import Budget
from headrace_kit.settings import SettingsError

from headrace_deploy import chosen, first_key, roles
from headrace_deploy.binaries import ServersError, servers_choice
from headrace_deploy.processes import replace_private
from headrace_deploy.servers import Postgres, Redis, free_port, redis_label
from headrace_deploy.services import MODEL_SERVICE, SPECS, make_api_key, make_tokens, settings, specs_for
from headrace_deploy.state import ProcessRef, ServerState, ServiceState, State

MAX_DEFAULT_EXECUTORS = 16
"""Executors without HEADRACE_EXECUTORS: one a core, up to here, as each takes a process's worth of memory."""

CHECK_GRAPHS_SECONDS = 60.0
"""Bound of the test load: importing a large graph takes seconds, one that takes a minute hangs."""

REDIS_ANSWER_SECONDS = 5.0

Say = Callable[[str], None]


class GraphsError(RuntimeError):
    """A graph that the user named does not load; the message names file, graph and cause."""


def prepare(state: State, *, run_dir: Path, environ: Mapping[str, str], durable: bool, say: Say) -> None:
    """Fill and save `state`; afterwards the supervisor can start. Blocking; must not run inside an event loop.

    `environ` has passed `chosen.check`.

    Raises SettingsError, ServersError, BudgetError, MigrationError or GraphsError.
    """
    for line in chosen.forgotten(state, environ):
        say(line)
    state.executors = chosen.executors(environ, default=min(len(os.sched_getaffinity(0)), MAX_DEFAULT_EXECUTORS))
    state.deployment = environ.get("HEADRACE_DEPLOYMENT") or state.deployment
    state.uid = environ.get("HEADRACE_FIRST_KEY_UID") or state.uid
    budget = _budget(environ, executors=state.executors)
    _addresses(state, environ)
    check_graphs(state, environ, run_dir=run_dir, say=say)
    state.passwords = roles.generate_passwords(budget) | state.passwords
    state.postgres = _postgres(state, run_dir, environ, budget=budget, durable=durable, say=say)
    state.redis = _redis(state, run_dir, environ, durable=durable, say=say)
    # Once more: a server may have taken a port that was free when the graphs were tried.
    _addresses(state, environ)
    _schema(state, budget, say=say)
    if first_key.is_revoked(state):
        say("the first API key was revoked; a new one takes its place")
        state.api_key = ""
    state.api_key = state.api_key or make_api_key()
    state.tokens = make_tokens(state.tokens)
    _tokens_file(run_dir / "tokens.json", state)
    state.chosen = chosen.remember(environ)
    state.save(run_dir)


def check_graphs(state: State, environ: Mapping[str, str], *, run_dir: Path, say: Say) -> None:
    """Load the user's graphs once in a throw-away process, so that their errors are told before anything starts.

    They see the model's variables and the rest of what executors will see, but no secret of the deployment.

    Raises GraphsError with one line for each graph that does not load.
    """
    if not environ.get("HEADRACE_LANGGRAPH_JSON"):
        return
    began = time.monotonic()
    try:
        tried = subprocess.run(
            [sys.executable, "-m", "run_worker", "check-graphs"],
            env=settings(
                next(spec for spec in SPECS if spec.name == "run-worker"),
                state=state,
                run_dir=run_dir,
                budget_path=roles.find_budget(environ),
                inherited=environ,
            ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_GRAPHS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise GraphsError(f"your graphs took more than {CHECK_GRAPHS_SECONDS:.0f} s to load") from None
    if tried.returncode != 0:
        raise GraphsError(f"a graph of HEADRACE_LANGGRAPH_JSON does not load\n{tried.stderr.strip()[-4000:]}")
    say(f"your graphs load  {time.monotonic() - began:.1f} s")


def _tokens_file(path: Path, state: State) -> None:
    # Tokens that `headrace keys create --scope service` added stay valid over every `up`.
    digests: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    digests |= {name: sha256_hex(token) for name, token in state.tokens.items()}
    replace_private(path, json.dumps(digests, indent=1))


def _budget(environ: Mapping[str, str], *, executors: int) -> Budget:
    path = roles.find_budget(environ)
    try:
        return budgets.load(path, executors=executors)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"HEADRACE_BUDGET_FILE: {path} is not a budget ({type(error).__name__}: {error})") from None


def _postgres(
    state: State, run_dir: Path, environ: Mapping[str, str], *, budget: Budget, durable: bool, say: Say
) -> ServerState:
    if url := environ.get("HEADRACE_POSTGRES_URL"):
        say("PostgreSQL: yours, by HEADRACE_POSTGRES_URL")
        if state.postgres and state.postgres.managed:
            state.kept["postgres"] = state.postgres
        return ServerState(managed=False, url=url)
    known = state.postgres if state.postgres and state.postgres.managed else state.kept.pop("postgres", None)
    server = Postgres.prepare(
        run_dir / "postgres",
        max_connections=budget.max_connections,
        password=known.password if known else "",
        port=known.port if known else 0,
        choice=servers_choice(environ),
        durable=durable,
    )
    # Saved before the start: an interrupted one must not lose the new cluster's password.
    state.postgres = _managed(server, server.dsn())
    state.save(run_dir)
    return _started(server, state.postgres, say)


def _redis(state: State, run_dir: Path, environ: Mapping[str, str], *, durable: bool, say: Say) -> ServerState:
    if url := environ.get("HEADRACE_REDIS_URL"):
        say("Redis: yours, by HEADRACE_REDIS_URL")
        if state.redis and state.redis.managed:
            state.kept["redis"] = state.redis
        return _labelled(ServerState(managed=False, url=url), name="the Redis of HEADRACE_REDIS_URL")
    known = state.redis if state.redis and state.redis.managed else state.kept.pop("redis", None)
    server = Redis.prepare(
        run_dir / "redis",
        password=known.password if known else "",
        port=known.port if known else 0,
        choice=servers_choice(environ),
        durable=durable,
    )
    state.redis = _managed(server, server.url)
    state.save(run_dir)
    return _started(server, state.redis, say)


def _managed(server: Postgres | Redis, url: str) -> ServerState:
    return ServerState(
        managed=True,
        url=url,
        port=server.port,
        password=server.password,
        version=server.program.version,
        source=server.program.source,
        product=server.program.product,
    )


def _labelled(told: ServerState, *, name: str) -> ServerState:
    # Its own words about product and version; a Redis that does not answer is told here, not by three services' logs.
    try:
        with redis.Redis.from_url(told.url, socket_timeout=REDIS_ANSWER_SECONDS) as client:
            about: Any = client.info("server")
    except (OSError, redis.RedisError, ValueError) as error:
        raise ServersError(f"{name} does not answer ({type(error).__name__}: {error})") from None
    told.product, told.version, told.speaks = redis_label(about)
    return told


def _started(server: Postgres | Redis, told: ServerState, say: Say) -> ServerState:
    began = time.monotonic()
    server.start()
    if process := server.process():
        told.process = ProcessRef.of(process.pid)
    if isinstance(server, Redis):
        _labelled(told, name="Redis")
    say(f"{told.label} ({told.source}) on 127.0.0.1:{told.port}  {time.monotonic() - began:.1f} s")
    return told


def _schema(state: State, budget: Budget, *, say: Say) -> None:
    assert state.postgres is not None
    place = {"deployment": state.deployment, "database": state.deployment}
    began = time.monotonic()
    # With its own factory a Runner leaves the thread's current loop alone, which may be a test's.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        try:
            applied = runner.run(roles.provision(state.postgres.url, **place, budget=budget, passwords=state.passwords))
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            whose = "PostgreSQL" if state.postgres.managed else "the PostgreSQL of HEADRACE_POSTGRES_URL"
            raise ServersError(f"{whose} does not take the schema ({type(error).__name__}: {error})") from None
    state.dsns = {
        role: roles.role_dsn(state.postgres.url, **place, role=role, password=password)
        for role, password in state.passwords.items()
    }
    say(
        f"schema {f'migrated by {len(applied)}' if applied else 'up to date'}, {len(budget.roles)} roles share"
        f" {budget.client_budget} connections  {time.monotonic() - began:.1f} s"
    )


def _addresses(state: State, environ: Mapping[str, str]) -> None:
    ports = {name: int(service.address.rpartition(":")[2]) for name, service in state.services.items()}
    if wanted := chosen.port(environ):
        if free_port(wanted) != wanted:
            raise SettingsError(f"HEADRACE_PORT: {wanted} is taken or not permitted on 127.0.0.1; choose another")
        ports["api-gateway"] = wanted
    state.services = {
        spec.name: ServiceState(address=f"127.0.0.1:{free_port(ports.get(spec.name, 0))}", status="starting")
        for spec in specs_for(environ)
    }
    state.base_url = f"http://{state.services['api-gateway'].address}"
    model = state.services.get(MODEL_SERVICE)
    state.model_url = f"http://{model.address}/v1" if model else environ["HEADRACE_MODEL_BASE_URL"]
