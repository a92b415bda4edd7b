"""What the pool makes of a caller's own mistake."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from headrace_kit.errors import Unavailable

from tests.integration.run_worker_control.world import World


@pytest.mark.parametrize(
    ("given", "raised"),
    [(["seven"], asyncpg.DataError), ([2**70], asyncpg.DataError), ([1, 2], asyncpg.InterfaceError)],
)
async def test_wrong_parameters_are_not_an_absent_server(
    world: World, given: list[Any], raised: type[Exception]
) -> None:
    """1. A statement gets a parameter that cannot be encoded, or one too many.  2. It raises what it is.
    3. The same pool tells a lost connection as Unavailable.
    """
    with pytest.raises(raised):
        await world.control.fetchval("SELECT $1::bigint", *given)
    with pytest.raises(Unavailable):
        await world.control.fetchval("SELECT pg_terminate_backend(pg_backend_pid())")
