"""CPU of an executor per streamed token, everything included: model, graph, sink, flusher, Redis, checkpoints, the end.

`python loadtest/benchmarks/executor_token_cost.py [--runs 20] [--tokens 200] [--rate 50]` starts its own PostgreSQL,
Redis and scripted provider, runs the executor's loops in this process, and prints microseconds of its CPU per token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import structlog
import uvloop
from headrace_agent import close_session
from headrace_deploy.binaries import servers_choice
from headrace_deploy.roles import generate_passwords, provision, role_dsn
from headrace_deploy.servers import Postgres, Redis
from headrace_kit import budget as budgets
from headrace_kit.ids import new_id
from headrace_kit.postgres import Database
from headrace_kit.redis import open_redis
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from run_worker.adapters import leases
from run_worker.adapters.graphs import builtin_file, load_graphs
from run_worker.adapters.stream import ProjectionWriter
from run_worker.executor import lease_figures, quiet_collector, run_figures, stream_limits
from run_worker.loops.attempt import ExecutorParts
from run_worker.loops.cancel_watch import CancelWatch
from run_worker.loops.claim import Claimer
from run_worker.loops.flusher import Flusher
from run_worker.loops.renewal import Lease, LeaseKeeper, tick
from run_worker.loops.table import RunTable

BUDGET = Path(__file__).resolve().parents[2] / "deploy" / "budget.toml"
DEPLOYMENT = "bench"

INSERT_THREAD = "INSERT INTO threads (thread_id, uid, agent) VALUES ($1, 'bench', 'assistant')"
INSERT_REQUEST = """
INSERT INTO requests (request_id, thread_id, uid, agent, run_id, state, body_sha256, input, dispatched_at)
VALUES ($1, $2, 'bench', 'assistant', $3, 'dispatched', 'x', $4, now())
"""
INSERT_RUN = """
INSERT INTO runs (run_id, request_id, thread_id, uid, agent, ordinal, root_run_id)
VALUES ($1, $2, $3, 'bench', 'assistant', 1, $1)
"""
BUSY = "UPDATE threads SET state = 'busy', active_run_id = $2, runs_count = 1 WHERE thread_id = $1"
STATES = "SELECT state, count(*) AS n FROM runs WHERE run_id = ANY($1) GROUP BY state"


async def insert_runs(control: Database, count: int) -> list[UUID]:
    """Insert `count` pending runs, each with its own thread."""
    made = []
    for _ in range(count):
        thread_id, request_id, run_id = new_id(), new_id(), new_id()
        body = json.dumps({"messages": [{"role": "user", "content": "hi", "id": str(run_id)}]})
        async with control.transaction() as connection:
            await connection.execute(INSERT_THREAD, thread_id)
            await connection.execute(INSERT_REQUEST, request_id, thread_id, run_id, body)
            await connection.execute(INSERT_RUN, run_id, request_id, thread_id)
            await connection.execute(BUSY, thread_id, run_id)
        made.append(run_id)
    return made


async def provider() -> tuple[asyncio.subprocess.Process, str]:
    """Start the scripted provider in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace_loadtest.provider", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    return process, line.split()[-1]


async def measure(folder: Path, *, runs: int, tokens: int, rate: float) -> str:
    """Return one line with the figures."""
    budget = budgets.load(BUDGET)
    choice = servers_choice()
    postgres = Postgres.prepare(folder / "pg", max_connections=budget.max_connections, choice=choice, durable=False)
    redis = Redis.prepare(folder / "redis", choice=choice, durable=False)
    passwords = generate_passwords(budget)
    async with AsyncExitStack() as stack:
        for server in (postgres, redis):
            server.start()
            stack.callback(server.stop)
        await provision(postgres.dsn(), deployment=DEPLOYMENT, database=DEPLOYMENT, budget=budget, passwords=passwords)
        model, url = await provider()
        stack.push_async_callback(model.wait)
        stack.callback(model.terminate)
        os.environ["HEADRACE_MODEL_BASE_URL"] = f"{url}/v1"
        os.environ["HEADRACE_MODEL_API_KEY"] = "none"
        os.environ["HEADRACE_MODEL_NAME"] = f"scripted:tokens={tokens},first=0.3,rate={rate:g}"

        def dsn(role: str) -> str:
            return role_dsn(
                postgres.dsn(), deployment=DEPLOYMENT, role=role, password=passwords[role], database=DEPLOYMENT
            )

        pools = {}
        for role in ("control", "executor", "graph"):
            pools[role] = Database(dsn=dsn(role), pool_max=budget.roles[role].pool_cap, application=role)
            await pools[role].open()
            stack.push_async_callback(pools[role].close)
        client = open_redis(redis.url, max_connections=budget.redis["pool_max"], client_name="bench")
        stack.push_async_callback(client.aclose)
        stack.push_async_callback(close_session)

        stream = budget.stream
        writer = ProjectionWriter(client, shards=1, ttl_seconds=stream["ttl_seconds"])
        flusher = Flusher(
            writer,
            window_seconds=stream["merge_window_seconds"],
            window_max_seconds=stream["merge_window_max_seconds"],
        )
        table = RunTable(runs)
        claimer = Claimer(table, poll_seconds=budget.runs["claim_poll_seconds"], max_faults=3)
        executor_id = new_id()
        figures = lease_figures(budget)
        agents, errors = await load_graphs([builtin_file()])
        assert not errors, errors
        parts = ExecutorParts(
            executor_id=executor_id,
            database=pools["executor"],
            graph_database=pools["graph"],
            flusher=flusher,
            lease=Lease(figures, registered_at=time.monotonic()),
            agents=agents,
            figures=run_figures(budget),
            stream_limits=stream_limits(budget),
            tracer=trace.get_tracer("bench"),
            revision="bench",
            model="scripted",
            slot_freed=claimer.slot_freed,
        )
        watch = CancelWatch(parts, table, writer, redis_seconds=0.2, postgres_seconds=1.0)

        for warm_up in (True, False):
            made = await insert_runs(pools["control"], runs)
            if warm_up:
                await leases.register(
                    pools["executor"],
                    executor_id=executor_id,
                    control_id=executor_id,
                    host="bench",
                    pid=os.getpid(),
                    address="",
                    version="bench",
                    slots=runs,
                    lease_seconds=figures.lease,
                )
                keeper = LeaseKeeper(
                    parts.lease,
                    leases.LeaseConnection(dsn=dsn("executor"), executor_id=executor_id, lease_seconds=figures.lease),
                    on_dead=lambda: None,
                )
                keeper.start()
                stack.push_async_callback(keeper.stop)
                loops = (tick(parts.lease), flusher.run(), claimer.run(parts), watch.run())
                tasks = [asyncio.create_task(loop) for loop in loops]
                for task in tasks:
                    stack.callback(task.cancel)
            quiet_collector()
            cpu, wall = time.process_time(), time.perf_counter()
            flushes, appended, heard = flusher.flushes, flusher.appended, table.token_count()
            claimer.wake()
            while table.token_count() - heard < len(made) * tokens or table.attempts():  # noqa: ASYNC110  # a benchmark
                await asyncio.sleep(0.1)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        states = {row["state"]: row["n"] for row in await pools["control"].fetch(STATES, made)}
    count, rounds, told = runs * tokens, flusher.flushes - flushes, flusher.appended - appended
    cost = f"{cpu / count * 1e6:.1f} us CPU per token ({cpu / runs * 1e3:.1f} ms a run)"
    flushing = f"{rounds / wall:.0f} flushes/s, {count / told:.1f} tokens an event"
    window = f"window {flusher.window_seconds * 1e3:.0f} ms"
    return f"{runs} runs, {count} tokens at {rate:g}/s each, {wall:.1f} s, {states}: {cost}, {flushing}, {window}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50.0)
    options = parser.parse_args()
    trace.set_tracer_provider(TracerProvider())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        line = uvloop.run(measure(Path(folder), runs=options.runs, tokens=options.tokens, rate=options.rate))
    print(line)  # noqa: T201  # a script's answer


if __name__ == "__main__":
    main()
