"""Connections to the provider when nobody closes them: whatever ends the loop, nothing is said at the exit."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from headrace_agent.sessions import session

from .conftest import DONE, ScriptedProvider, delta, finish, stream

ASYNCIO_RUN = "asyncio.run(talk())"
LOOP_CLOSED = "loop = asyncio.new_event_loop(); loop.run_until_complete(talk()); loop.close()"
LOOP_LEFT_OPEN = "loop = asyncio.new_event_loop(); loop.run_until_complete(talk())"
ANOTHER_LOOP = f"{LOOP_CLOSED}; {ASYNCIO_RUN}"
BLOCKING = "ChatModel().invoke('hi')"
IN_A_DAEMON_THREAD = """
done = threading.Event()
async def stay():
    await talk()
    done.set()
    await asyncio.sleep(3600)
threading.Thread(target=asyncio.run, args=(stay(),), daemon=True).start()
done.wait(20)
"""
ENDINGS = [ASYNCIO_RUN, LOOP_CLOSED, LOOP_LEFT_OPEN, ANOTHER_LOOP, BLOCKING, IN_A_DAEMON_THREAD]

PROGRAM = """
import asyncio, threading
from headrace_agent import ChatModel
async def talk():
    await ChatModel().ainvoke("hi")
"""


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_program_that_closes_nothing_ends_in_silence(provider: ScriptedProvider, ending: str) -> None:
    """
    1. A program outside a run talks to a model, keeps the connection alive, and ends its loop in one of these ways
    2. It exits with 0 and says nothing
    """
    provider.then(*[stream(delta(content="ok"), finish(), DONE)] * 2)
    environ = dict(os.environ) | {"HEADRACE_MODEL_BASE_URL": provider.url, "HEADRACE_MODEL_NAME": "scripted"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM + ending, env=environ, stderr=asyncio.subprocess.PIPE
    )
    _, told = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, told.decode()) == (0, "")
    assert provider.bodies


async def test_a_loop_that_shuts_down_closes_its_session() -> None:
    """1. A loop of its own opens a session. 2. When asyncio.run is through, the session is closed."""
    opened = await asyncio.to_thread(asyncio.run, session())
    assert opened.closed
