"""The subnet pool's arithmetic."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandbox_provisioner.domain import subnets

POOL = subnets.DEFAULT_POOL
SLOTS = list(POOL.subnets(new_prefix=subnets.PREFIX))


@pytest.mark.parametrize(("pool", "expected"), [("10.0.0.0/20", 256), ("10.0.0.0/28", 1), ("10.0.0.0/29", 0)])
def test_how_many_a_pool_holds(pool: str, expected: int) -> None:
    """1. A pool.  2. It holds one subnet for each /28 in it."""
    assert subnets.count(IPv4Network(pool)) == expected


@pytest.mark.parametrize(
    ("taken", "free"),
    [
        ([], 256),
        (["10.253.240.0/28"], 255),
        (["10.253.240.0/28", "10.253.240.0/28"], 255),
        (["10.253.240.4/30"], 255),
        (["10.253.240.0/24"], 240),
        (["10.0.0.0/8"], 0),
        (["10.253.239.0/24", "10.254.0.0/24", "172.17.0.0/16"], 256),
        (["", "fd00::/64", "nonsense", "10.253.240.0/99"], 256),
    ],
)
def test_what_networks_take(taken: list[str], free: int) -> None:
    """1. Networks of an engine, of any size and kind.  2. Each slot that one overlaps is taken, once."""
    assert subnets.count_free(POOL, taken) == free


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32)), max_size=8))
def test_the_count_is_that_of_looking_at_every_slot(networks: list[tuple[int, int]]) -> None:
    """1. Any networks.  2. The arithmetic agrees with asking each of the 256 slots."""
    parsed = [IPv4Network(network, strict=False) for network in networks]
    expected = sum(not any(slot.overlaps(network) for network in parsed) for slot in SLOTS)
    assert subnets.count_free(POOL, [str(network) for network in parsed]) == expected
