"""How calls fail: typed, bounded, tried again only where it helps, and never with the key in the text."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import web
from headrace_agent import ChatModel, ModelRefused, ModelTimeout, ModelUnavailable
from pydantic import SecretStr

from .conftest import DONE, KEY, ScriptedProvider, begin, delta, event, finish, status, stream


async def test_429_then_an_answer(provider: ScriptedProvider) -> None:
    """1. The provider says: not now, come back at once. 2. The second try gets the answer."""
    provider.then(
        status(429, {"message": "slow down"}, **{"Retry-After": "0"}), stream(delta(content="ok"), finish(), DONE)
    )

    message = await provider.model().ainvoke("hi")

    assert message.content == "ok"
    assert len(provider.bodies) == 2


async def test_429_to_the_end_is_a_refusal(provider: ScriptedProvider) -> None:
    """1. The provider never gives way. 2. After the retries the refusal carries status, reason and Retry-After."""
    provider.then(
        *[status(429, {"message": "slow down", "code": "rate_limit_exceeded"}, **{"Retry-After": "0.01"})] * 3
    )

    with pytest.raises(ModelRefused) as caught:
        await provider.model().ainvoke("hi")

    assert (caught.value.status, caught.value.reason) == (429, "rate_limit_exceeded")
    assert caught.value.retry_after_seconds == pytest.approx(0.01)
    assert len(provider.bodies) == 3


@pytest.mark.parametrize(
    ("code", "headers"), [("insufficient_quota", {}), ("rate_limit_exceeded", {"Retry-After": "3600"})]
)
async def test_a_quota_or_a_long_wait_is_told_at_once(
    provider: ScriptedProvider, code: str, headers: dict[str, str]
) -> None:
    """1. The account is used up, or the wait is an hour. 2. No second try; the caller decides."""
    provider.then(status(429, {"message": "no", "code": code}, **headers))

    with pytest.raises(ModelRefused) as caught:
        await provider.model().ainvoke("hi")

    assert caught.value.reason == code
    assert caught.value.retry_after_seconds == (3600.0 if headers else None)
    assert len(provider.bodies) == 1


async def test_a_refusal_never_quotes_the_key(provider: ScriptedProvider) -> None:
    """1. The provider refuses the key and quotes it. 2. The error says all of it but the key."""
    provider.then(status(401, {"message": f"Incorrect API key provided: {KEY}.", "code": "invalid_api_key"}))

    with pytest.raises(ModelRefused) as caught:
        await provider.model().ainvoke("hi")

    assert caught.value.status == 401
    assert "Incorrect API key provided: ***" in str(caught.value)
    assert KEY not in repr(caught.value)
    assert KEY not in repr(provider.model())


async def test_500_is_tried_again_and_then_unavailable(provider: ScriptedProvider) -> None:
    """1. The provider fails each time. 2. The bounded tries end in ModelUnavailable with the status."""
    provider.then(*[status(503, "overloaded", **{"Retry-After": "0"})] * 2)

    with pytest.raises(ModelUnavailable) as caught:
        await provider.model(max_retries=1).ainvoke("hi")

    assert caught.value.status == 503
    assert len(provider.bodies) == 2


async def test_connection_refused() -> None:
    """1. Nobody listens. 2. ModelUnavailable, without a status."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        model = ChatModel(model="m", base_url=f"http://127.0.0.1:{unused.getsockname()[1]}/v1", max_retries=0)

        with pytest.raises(ModelUnavailable) as caught:
            await model.ainvoke("hi")

    assert caught.value.status is None


async def test_broken_in_the_middle_is_not_tried_again(provider: ScriptedProvider) -> None:
    """1. The connection dies after a token. 2. ModelUnavailable; the provider was asked once."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await response.write(delta(content="half"))
        assert request.transport is not None
        request.transport.abort()
        return response

    provider.then(reply)

    with pytest.raises(ModelUnavailable):
        await provider.model().ainvoke("hi")

    assert len(provider.bodies) == 1


async def test_an_end_in_the_middle_is_no_answer(provider: ScriptedProvider) -> None:
    """1. The body ends properly, but with neither finish_reason nor [DONE]. 2. ModelUnavailable."""
    provider.then(stream(delta(content="half")))

    with pytest.raises(ModelUnavailable, match="in the middle"):
        await provider.model().ainvoke("hi")


async def test_an_error_inside_the_stream(provider: ScriptedProvider) -> None:
    """1. The provider's own failure comes as an event, then a refusal does. 2. Each gets its class."""
    provider.then(
        stream(delta(content="a"), event({"error": {"message": "boom", "type": "server_error"}})),
        stream(event({"error": {"message": "not allowed", "code": "content_filter"}})),
    )
    model = provider.model(max_retries=0)

    with pytest.raises(ModelUnavailable, match="boom"):
        await model.ainvoke("hi")
    with pytest.raises(ModelRefused) as caught:
        await model.ainvoke("hi")

    assert caught.value.reason == "content_filter"


@pytest.mark.parametrize("which", ["first_byte", "silence"])
async def test_a_silent_provider(provider: ScriptedProvider, which: str) -> None:
    """1. The provider goes silent, before its first byte or after it. 2. ModelTimeout says which."""
    over = asyncio.Event()

    async def reply(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        if which == "silence":
            await response.write(delta(content="I"))
        await over.wait()
        return response

    provider.then(reply)

    with pytest.raises(ModelTimeout) as caught:
        await provider.model(first_byte_timeout_seconds=0.2, silence_timeout_seconds=0.2).ainvoke("hi")
    over.set()

    assert caught.value.which == which


async def test_cancelling_closes_the_socket(provider: ScriptedProvider) -> None:
    """1. A task waits for the next token. 2. It is cancelled. 3. The provider sees its client go."""
    begun, gone = asyncio.Event(), asyncio.Event()

    async def reply(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await response.write(delta(content="I"))
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # aiohttp cancels a handler when its client has gone.
            gone.set()
            raise
        return response

    provider.then(reply)
    task = asyncio.create_task(provider.model().ainvoke("hi"))
    async with asyncio.timeout(5):
        await begun.wait()

        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await gone.wait()


async def test_a_model_that_is_not_configured_says_what_is_missing() -> None:
    """1. Neither arguments nor environment name a model. 2. The refusal names what to set."""
    with pytest.raises(ModelRefused, match="HEADRACE_MODEL_BASE_URL") as caught:
        await ChatModel(model="", base_url="").ainvoke("hi")

    assert caught.value.reason == "model_not_configured"


async def test_an_unreachable_provider_is_named_with_the_setting() -> None:
    """1. Nothing listens at the configured address. 2. The error says host, port and the setting, and not the key."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        port = taken.getsockname()[1]
        model = ChatModel(model="m", base_url=f"http://127.0.0.1:{port}/v1", api_key=SecretStr(KEY), max_retries=0)
        with pytest.raises(ModelUnavailable, match=rf"127\.0\.0\.1:{port} .*HEADRACE_MODEL_BASE_URL") as caught:
            await model.ainvoke("hi")
    assert KEY not in str(caught.value)


async def test_an_address_without_scheme_is_refused_at_once() -> None:
    """1. The address lacks http://. 2. The refusal says what to write; nothing is tried again."""
    model = ChatModel(model="m", base_url="localhost:8000/v1", api_key=SecretStr(KEY), max_retries=1000)
    with pytest.raises(ModelRefused, match="write http://localhost:8000/v1"):
        await model.ainvoke("hi")


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"base_url": "http://host/v1", "model": ""}, ["HEADRACE_MODEL_NAME"]),
        ({"base_url": "", "model": "m"}, ["HEADRACE_MODEL_BASE_URL"]),
        ({"base_url": "", "model": " "}, ["HEADRACE_MODEL_BASE_URL", "HEADRACE_MODEL_NAME"]),
    ],
)
async def test_what_is_not_configured_is_named_alone(fields: dict[str, str], names: list[str]) -> None:
    """1. The name of the model, its address, or both are missing. 2. The refusal names these settings and no others."""
    with pytest.raises(ModelRefused) as caught:
        await ChatModel(**fields).ainvoke("hi")
    assert [name for name in ("HEADRACE_MODEL_BASE_URL", "HEADRACE_MODEL_NAME") if name in str(caught.value)] == names
