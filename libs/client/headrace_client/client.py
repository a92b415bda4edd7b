"""The blocking client. `AsyncClient` is the same with `await`; what they share is in `calls` and `following`."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import httpx

from headrace_client import calls, errors
from headrace_client.config import find_target
from headrace_client.following import OUTAGE_SECONDS, SILENCE_SECONDS, Event, Following
from headrace_client.sse import EventTooLarge, SseParser
from headrace_client.types import (
    TERMINAL_STATES,
    Agent,
    ApiKey,
    MessagePage,
    Request,
    Result,
    Run,
    RunPage,
    Thread,
    ThreadPage,
)

CONNECT_SECONDS = 5.0
"""A server that does not take a connection by then is away."""
WAIT_SECONDS = 3600.0
"""How long `wait` waits unless told: the server's own limit for a run."""
WAIT_STEP_SECONDS = 30.0
"""The longest single call of `wait`; proxies cut idle connections not long after."""


class Client:
    """A connection to one Headrace server. Safe to use from several threads.

    Every method raises the errors of `headrace_client.errors`. Calls that may be repeated are, a few times, when the
    server is away; a submission is one of them, because it carries an idempotency key.
    """

    def __init__(self, base_url: str | None = None, api_key: str | None = None) -> None:
        """Connect to `base_url` with `api_key`; what is not given comes from the environment or `.run/state.json`.

        Raises NotConfigured when there is no address or no key, BadRequest when one of them cannot be any.
        """
        target = find_target(base_url, api_key)
        self.base_url = target.base_url
        self._http = httpx.Client(
            base_url=target.base_url,
            headers={"Authorization": f"Bearer {target.api_key}"},
            timeout=httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # Threads

    def create_thread(
        self,
        agent: str = "assistant",
        *,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        thread_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Thread:
        """Create a thread that talks to `agent`."""
        return cast(Thread, self._send(calls.create_thread(agent, title, metadata, thread_id, idempotency_key)))

    def get_thread(self, thread_id: str) -> Thread:
        """Get a thread."""
        return cast(Thread, self._send(calls.thread(thread_id)))

    def threads(self, *, page_size: int | None = None, page_token: str | None = None) -> ThreadPage:
        """List threads, last changed first."""
        return cast(ThreadPage, self._send(calls.page("/v1/threads", page_size, page_token)))

    def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> Thread:
        """Change a thread's `title` or `metadata`."""
        return cast(Thread, self._send(calls.thread(thread_id, "PATCH", json=dict(changes))))

    def delete_thread(self, thread_id: str, *, cancel: bool = False) -> None:
        """Delete a thread; with an active run only when `cancel` is set."""
        params = {"cancel": "true"} if cancel else {}
        self._send(calls.thread(thread_id, "DELETE", params=params))

    def continue_thread(self, thread_id: str) -> Request:
        """Let a paused thread go on with the head of its queue."""
        return cast(Request, self._send(calls.thread(thread_id, "POST", "/continue", repeatable=False)))

    def messages(self, thread_id: str, *, page_size: int | None = None, page_token: str | None = None) -> MessagePage:
        """List a thread's messages, oldest first, with the runs they belong to."""
        path = calls.thread(thread_id, suffix="/messages").path
        return cast(MessagePage, self._send(calls.page(path, page_size, page_token)))

    def state(self, thread_id: str) -> dict[str, Any]:
        """Get the values of the thread's latest checkpoint."""
        return cast(dict[str, Any], self._send(calls.thread(thread_id, suffix="/state")))

    # Requests and runs

    def submit(
        self,
        thread_id: str,
        message: str | None = None,
        *,
        input: Any = None,  # noqa: A002 - the API's own word
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Request:
        """Submit a message, or any input of the graph, to a thread.

        `options` are the fields of the API: multitask_strategy, config, context, stream_modes, stream_subgraphs,
        durability, metadata. Without `idempotency_key` one is made, so that sending again cannot submit twice.
        """
        body = calls.submission(message, input, options)
        return cast(Request, self._send(calls.submit(thread_id, body, idempotency_key)))

    def get_request(self, request_id: str) -> Request:
        """Get a request."""
        return cast(Request, self._send(calls.request(request_id)))

    def cancel_request(self, request_id: str) -> Request:
        """Cancel a request that still waits."""
        return cast(Request, self._send(calls.request(request_id, "/cancel", "POST")))

    def get_run(self, run_id: str) -> Run:
        """Get a run; it is known from its submission on."""
        return cast(Run, self._send(calls.run(run_id)))

    def runs(
        self,
        *,
        thread_id: str | None = None,
        state: str | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> RunPage:
        """List runs, newest first."""
        return cast(
            RunPage, self._send(calls.page("/v1/runs", page_size, page_token, thread_id=thread_id, state=state))
        )

    def result(self, run_id: str) -> Result:
        """Get what a run ended with; `run.state` says whether it has."""
        return cast(Result, self._send(calls.run(run_id, "/result")))

    def wait(self, run_id: str, timeout_seconds: float = WAIT_SECONDS) -> Run:
        """Wait for a run's end, at most so long; the state of the answer says which came first."""
        until = time.monotonic() + timeout_seconds
        while True:
            step = max(0.0, min(WAIT_STEP_SECONDS, until - time.monotonic()))
            run = cast(Run, self._send(calls.wait(run_id, step)))
            if run["state"] in TERMINAL_STATES or time.monotonic() >= until:
                return run

    def cancel(self, run_id: str) -> Run:
        """Cancel a run; when this returns, the cancel is durable."""
        return cast(Run, self._send(calls.run(run_id, "/cancel", "POST")))

    def follow(
        self,
        run_id: str,
        *,
        after: str | None = None,
        modes: Sequence[str] | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> Generator[Event, None, None]:
        """Yield a run's events after id `after`, from the first by default, to its `end`.

        Broken connections are resumed exactly: every event comes once and in order. Raises StreamLost when one outage
        lasts longer than `outage_seconds`, BadRequest when `after` is no event's id.
        """
        call = calls.events(run_id, modes)
        following = Following(after=after, outage_seconds=outage_seconds)
        while not following.ended:
            problem: Exception | str = "the connection was closed before the end"
            try:
                with self._http.stream(
                    call.method, call.path, params=dict(call.params), headers=following.headers()
                ) as response:
                    if response.status_code == httpx.codes.NO_CONTENT:
                        return
                    if not is_stream(response):
                        raise errors.from_response(response.status_code, response.headers, response.read())
                    following.opened()
                    parser = SseParser()
                    for piece in response.iter_raw():
                        for frame in parser.feed(piece):
                            yield following.accept(frame)
                            if following.ended:
                                return
            except (httpx.TransportError, EventTooLarge, errors.RateLimited, errors.ServerError) as error:
                problem = error
            time.sleep(following.next_delay(problem))

    # The server

    def agents(self) -> list[Agent]:
        """List the agents that can be talked to."""
        page = self._send(calls.page("/v1/agents", calls.PAGE_MAX, None))
        return cast(list[Agent], page["agents"])

    def keys(self) -> list[ApiKey]:
        """List the newest API keys, without their secrets."""
        page = self._send(calls.page("/v1/keys", calls.PAGE_MAX, None))
        return cast(list[ApiKey], page["keys"])

    def create_key(
        self,
        label: str = "",
        *,
        scopes: Sequence[str],
        uid: str | None = None,
        expires_in_seconds: int | None = None,
    ) -> ApiKey:
        """Create an API key, for the caller's user unless `uid` names one; `key` in the answer is shown this once."""
        return cast(ApiKey, self._send(calls.create_key(label, scopes, uid, expires_in_seconds)))

    def revoke_key(self, key_id: str) -> None:
        """Revoke an API key; it stops working within seconds."""
        self._send(calls.revoke_key(key_id))

    def _send(self, call: calls.Call) -> Any:
        attempt = 0
        while True:
            attempt += 1
            try:
                response = self._http.request(
                    call.method,
                    call.path,
                    params=dict(call.params),
                    json=call.json,
                    headers=dict(call.headers),
                    timeout=httpx.Timeout(call.answer_within_s, connect=CONNECT_SECONDS),
                )
                return answer(response)
            except httpx.TransportError as error:
                problem: errors.HeadraceError = unreachable(self.base_url, error)
            except (errors.RateLimited, errors.ServerError) as error:
                problem = error
            wait = calls.retry_delay(call, problem, attempt)
            if wait is None:
                raise problem
            time.sleep(wait)


def answer(response: httpx.Response) -> Any:
    """Return the JSON of an answer, None for an empty one.

    Raises the typed error of one that is no success, also of a success that is not JSON.
    """
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    if not response.is_success or "json" not in response.headers.get("content-type", ""):
        raise errors.from_response(response.status_code, response.headers, response.content)
    return response.json()


def is_stream(response: httpx.Response) -> bool:
    """Return whether an answer is an event stream; a 200 with a web page is not."""
    kind = response.headers.get("content-type", "")
    return response.status_code == httpx.codes.OK and kind.startswith("text/event-stream")


def unreachable(base_url: str, error: httpx.TransportError) -> errors.Unreachable:
    """Return the typed error of a connection that failed."""
    told = str(error) or type(error).__name__
    return errors.Unreachable(f"no answer from {base_url}: {told}", reason="UNREACHABLE")
