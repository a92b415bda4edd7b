"""The pool of sandbox subnets: how many there are and how many are still free.

Slot i of the pool is subnet i; an engine's network that overlaps a slot takes it, whoever made that network.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import AddressValueError, IPv4Network, NetmaskValueError

DEFAULT_POOL = IPv4Network("10.253.240.0/20")
"""A corner of 10/8 that neither Docker's own pools nor common VPNs use."""

PREFIX = 28
"""One sandbox needs its bridge and itself; a /28 leaves room for 12 helpers. A /20 holds 256 of them."""


def count(pool: IPv4Network) -> int:
    """Return the number of subnets in `pool`; 0 when it is smaller than one."""
    return 1 << (PREFIX - pool.prefixlen) if pool.prefixlen <= PREFIX else 0


def count_free(pool: IPv4Network, taken: Iterable[str]) -> int:
    """Return how many subnets of `pool` overlap none of the networks in `taken`.

    Text that is no IPv4 network (an IPv6 one, an empty one) takes nothing.
    """
    first = int(pool.network_address)
    size = 1 << (32 - PREFIX)
    slots: set[int] = set()
    for text in taken:
        try:
            network = IPv4Network(text, strict=False)
        except (AddressValueError, NetmaskValueError, ValueError):
            continue
        if network.overlaps(pool):
            low = max(int(network.network_address) - first, 0) // size
            high = min(int(network.broadcast_address) - first, pool.num_addresses - 1) // size
            slots.update(range(low, high + 1))
    return count(pool) - len(slots)
