"""The load ladder: real HTTP, real runs, strict success, and what it cost.

`python -m headrace_loadtest.ladder --levels 1,20 --scenario text`. It creates threads (and for more than a few users
API keys) and deletes exactly those; it keeps no model text and writes to loadtest/out/ only.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
import uvloop
from headrace_client.config import find_target, load_state
from headrace_client.errors import HeadraceError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace_loadtest import report
from headrace_loadtest.sampling import Sampler, Usage
from headrace_loadtest.scenarios import SCENARIOS, TEXT_TOKENS, Scenario, text
from headrace_loadtest.users import Failure, Outcome, call, create_thread, run_once

OUT = Path(__file__).resolve().parents[1] / "out"
USERS_PER_KEY = 15
"""Virtual users that share an API user, whose limit is 20 active runs and 20 streams."""
IDLE_S = 5.0
"""How long the idle cost of the processes is measured before the first level."""
RECOVERY_S = 30.0
"""How long after a level the servers may take until they are back where they were."""
CALL_TIMEOUT_S = 30.0
STATS_TIMEOUT_S = 5.0
DELETES_AT_ONCE = 20
USERS_MAX = 10_000
"""More than one load generator drives."""
TOKENS_MAX = 8000
"""At the scenario's pace a run of that length takes 160 s."""


class Deployment:
    """The server under load, and keys for as many API users as the level needs."""

    def __init__(self, base_url: str, api_key: str, model_url: str | None) -> None:
        self.base_url = base_url
        self.model_url = model_url
        self._api_key = api_key
        self._admin = self._session(api_key)
        self._users: list[aiohttp.ClientSession] = []
        self._key_ids: list[str] = []

    async def user(self, number: int) -> aiohttp.ClientSession:
        """Return the connection of virtual user `number`."""
        while number // USERS_PER_KEY >= len(self._users):
            body = {"label": "load run", "uid": f"load-{len(self._users)}", "scopes": ["write"]}
            made = await call(self._admin, "POST", "/v1/keys", json=body)
            self._key_ids.append(made["key_id"])
            self._users.append(self._session(made["key"]))
        return self._users[number // USERS_PER_KEY]

    async def model_stats(self) -> Mapping[str, Any]:
        """Return the scripted provider's counters, empty for another provider."""
        if self.model_url is None:
            return {}
        root = self.model_url.rstrip("/").removesuffix("/v1")
        timeout = aiohttp.ClientTimeout(total=STATS_TIMEOUT_S)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{root}/stats") as response:
                stats: Mapping[str, Any] = await response.json()
                return stats if "totals" in stats else {}
        return {}

    async def ready(self) -> bool:
        """Return whether the server calls itself ready."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self._admin.get("/readyz") as response:
                return response.status == 200
        return False

    async def close(self) -> None:
        """Revoke the keys that were made and close the connections."""
        for key_id in self._key_ids:
            with contextlib.suppress(Failure, aiohttp.ClientError, TimeoutError):
                await call(self._admin, "DELETE", f"/v1/keys/{key_id}")
        for http in (*self._users, self._admin):
            await http.close()

    def _session(self, key: str) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            self.base_url,
            headers={"Authorization": f"Bearer {key}"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=CALL_TIMEOUT_S),
        )


async def climb(
    deployment: Deployment,
    sampler: Sampler,
    levels: list[int],
    scenarios: Sequence[Scenario],
    rounds: int,
    console: Console,
) -> list[report.Level]:
    """Measure every level, the smallest load first as given, with each scenario."""
    measured = []
    async with sampler.during() as idle:
        await asyncio.sleep(IDLE_S)
    for users, scenario in itertools.product(levels, scenarios):
        level = await measure(deployment, sampler, idle, users, scenario, rounds, console)
        report.show(console, level)
        measured.append(level)
    return measured


async def measure(
    deployment: Deployment,
    sampler: Sampler,
    idle: Usage,
    users: int,
    scenario: Scenario,
    rounds: int,
    console: Console,
) -> report.Level:
    """Let `users` make `rounds` runs each, all beginning at once, in a thread of their own."""
    columns = TextColumn("level {task.fields[users]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    before = await deployment.model_stats()
    sessions = [await deployment.user(number) for number in range(users)]
    async with _threads(sessions) as threads:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("runs", total=users * rounds, users=users)

            async def user(number: int) -> list[Outcome]:
                outcomes = []
                for round_number in range(rounds):
                    message = scenario.message(number, round_number)
                    outcomes.append(await run_once(sessions[number], scenario, threads[number], message))
                    progress.advance(bar)
                return outcomes

            async with sampler.during() as usage:
                done = await asyncio.gather(*(user(number) for number in range(users)))
        recovery = await recover(deployment)
        after = await deployment.model_stats()
    outcomes = [outcome for each in done for outcome in each]
    return report.Level(users, scenario, outcomes, usage, idle, _model_facts(before, after), recovery)


@contextlib.asynccontextmanager
async def _threads(sessions: list[aiohttp.ClientSession]) -> AsyncIterator[list[str]]:
    """Give every virtual user a thread of its own, and delete them afterwards."""
    made: list[tuple[aiohttp.ClientSession, str]] = []
    gate = asyncio.Semaphore(DELETES_AT_ONCE)

    async def delete(http: aiohttp.ClientSession, thread_id: str) -> None:
        with contextlib.suppress(Failure, aiohttp.ClientError, TimeoutError):
            async with gate:
                await call(http, "DELETE", f"/v1/threads/{thread_id}", params={"cancel": "true"})

    try:
        for http in sessions:
            thread_id = await create_thread(http)
            made.append((http, thread_id))  # one by one, so that those made before a failure are deleted too
        yield [thread_id for _, thread_id in made]
    finally:
        await asyncio.gather(*(delete(http, thread_id) for http, thread_id in made))


async def recover(deployment: Deployment) -> Mapping[str, Any]:
    """Wait until the server is ready and the model has no open stream; return how long that took, or what is not."""
    began = time.monotonic()
    while True:
        ready = await deployment.ready()
        stats = await deployment.model_stats()
        streams = stats["totals"]["open_streams"] if stats else 0
        if ready and streams == 0:
            return {"recovered after": f"{time.monotonic() - began:.1f} s"}
        if time.monotonic() - began > RECOVERY_S:
            return {"NOT recovered": f"ready {ready}, open model streams {streams}"}
        await asyncio.sleep(0.2)


def _model_facts(before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any]:
    if not before or not after:
        return {}
    requests = after["totals"]["requests"] - before["totals"]["requests"]
    late = [entry["late_ms"] for entry in after["last"][-requests:]] if requests > 0 else []
    return {
        "requests": requests,
        "tokens": after["totals"]["tokens"] - before["totals"]["tokens"],
        "disconnects": after["totals"]["disconnects"] - before["totals"]["disconnects"],
        "late_ms_max": round(max(late, default=0.0), 2),
    }


def write(levels: list[report.Level], out: Path) -> Path:
    """Write the figures as JSON; returns the file."""
    out.mkdir(parents=True, exist_ok=True)
    moment = datetime.now(UTC)
    path = out / f"ladder-{moment:%Y%m%dT%H%M%SZ}.json"
    figures = [report.as_json(level) for level in levels]
    document = {"made_at": moment.isoformat(), "levels": figures, "marginals": report.marginals(levels)}
    path.write_text(json.dumps(document, indent=1))
    return path


def _numbers(told: str, *, hint: str, at_most: int) -> list[int]:
    """Return the whole numbers of an option; raises BadParameter for anything else."""
    words = [word.strip() for word in told.split(",")]
    if not all(word.isascii() and word.isdecimal() and 1 <= int(word) <= at_most for word in words):
        raise typer.BadParameter(f"{told!r} is not whole numbers from 1 to {at_most}, as 1,20", param_hint=hint)
    return [int(word) for word in words]


def ladder(
    levels: Annotated[str, typer.Option(help="Users at once, one level after the other.")] = "1,20",
    scenario: Annotated[str, typer.Option(help=f"One of {', '.join(SCENARIOS)}.")] = "text",
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each user.")] = 1,
    tokens: Annotated[
        str, typer.Option(help="Tokens of a text run; two counts, as 200,1000, give the cost of one more token too.")
    ] = str(TEXT_TOKENS),
    url: Annotated[str | None, typer.Option(help="Server; else HEADRACE_URL, else .run/state.json.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the JSON.")] = OUT,
) -> None:
    """Measure the product under load, level by level.

    Exit code 0 only if every run of every level was a strict success.

    Example: python -m headrace_loadtest.ladder --levels 1,20 --scenario text
    """
    console = Console(width=None if Console().is_terminal else 120)
    wanted = _numbers(levels, hint="--levels", at_most=USERS_MAX)
    lengths = _numbers(tokens, hint="--tokens", at_most=TOKENS_MAX)
    if scenario not in SCENARIOS:
        raise typer.BadParameter(f"scenario is one of {', '.join(SCENARIOS)}", param_hint="--scenario")
    try:
        target = find_target(url)
        state = load_state()
    except HeadraceError as error:
        console.print(f"[red]error:[/red] {error.detail}")
        raise typer.Exit(1) from None
    if state.get("base_url") != target.base_url:
        state = {}  # another machine's: nothing here can be sampled

    chosen = [text(length) for length in lengths] if scenario == "text" else [SCENARIOS[scenario]()]

    async def entry() -> list[report.Level]:
        deployment = Deployment(target.base_url, target.api_key, state.get("model_url"))
        try:
            return await climb(deployment, Sampler(state), wanted, chosen, rounds, console)
        finally:
            await deployment.close()

    try:
        measured = uvloop.run(entry())
    except (Failure, aiohttp.ClientError, TimeoutError) as error:
        console.print(f"[red]error:[/red] {type(error).__name__}: {error}", markup=True)
        raise typer.Exit(1) from None
    report.show_marginals(console, measured)
    console.print(f"\n[dim]{write(measured, out)}[/dim]")
    raise typer.Exit(0 if all(len(level.successes) == len(level.outcomes) for level in measured) else 1)


if __name__ == "__main__":
    typer.run(ladder)
