"""Sizes: what is too large gives way to a marker, and pages end early."""

from __future__ import annotations

import json

from run_worker.domain import sizes


def test_a_page_ends_where_it_is_full_and_is_never_empty() -> None:
    """1. Items of 1, 2 and 2 MiB: two fit.  2. One that is larger than a page is a page."""
    mib = 1024 * 1024
    assert sizes.page_length([mib, 2 * mib, 2 * mib]) == 2
    assert sizes.page_length([9 * mib, 1]) == 1
    assert sizes.page_length([4 * mib, 0]) == 2


def test_the_largest_members_give_way_first() -> None:
    """1. An object holds a small, a large and a larger member.  2. Only as many as needed become markers."""
    raw = json.dumps({"small": "x", "large": "y" * 100, "larger": "z" * 200}).encode()
    assert sizes.bounded_object(raw, limit=len(raw)) == raw
    shown = json.loads(sizes.bounded_object(raw, limit=200))
    assert shown == {"small": "x", "large": "y" * 100, "larger": {"truncated": True, "bytes": 202}}
    many = json.dumps({str(number): number for number in range(1000)}).encode()
    assert json.loads(sizes.bounded_object(many, limit=200)) == {"truncated": True, "bytes": len(many)}


def test_fields_are_bounded() -> None:
    """1. JSON and a text at their limit stay.  2. One byte more is told by its size."""
    assert sizes.bounded_json('"abc"', limit=5) == b'"abc"'
    assert json.loads(sizes.bounded_json('"abcd"', limit=5)) == {"truncated": True, "bytes": 6}
    assert json.loads(sizes.bounded_json('"abcd"', limit=5, listed=True)) == [{"truncated": True, "bytes": 6}]
    assert sizes.bounded_text("éé", limit=4) == "éé"
    assert sizes.bounded_text("éé.", limit=4) == "é [truncated: 5 bytes]"
