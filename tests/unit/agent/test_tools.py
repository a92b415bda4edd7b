"""The built-in tools: right within their limits, a plain answer outside of them."""

from __future__ import annotations

import pytest
from headrace_agent.tools import calculate, current_time, evaluate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("-2 ** 2", -4),
        ("7 // 2", 3),
        ("7 / 2", 3.5),
        ("2 ** -1", 0.5),
        ("7 % 4", 3),
    ],
)
def test_arithmetic(expression: str, value: float) -> None:
    """1. An expression of numbers. 2. Its value."""
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "(1).__class__",
        "'a' * 10",
        "[1][0]",
        "True + 1",
        "1j * 1j",
        "9 ** 9 ** 9",
        "(2 ** 1000) ** 1000",
        "1 << 100000",
        "(-8) ** 0.5",
        "1 +",
        "1" * 501,
    ],
)
def test_what_is_not_arithmetic_or_too_large_is_refused(expression: str) -> None:
    """1. Code, other types, or numbers without bound. 2. ValueError, at once."""
    with pytest.raises(ValueError, match=r"."):
        evaluate(expression)


@pytest.mark.parametrize("expression", ["1 / 0", "2.0 ** 10000", "import os"])
def test_the_tool_tells_the_model_instead_of_failing(expression: str) -> None:
    """1. The model asks for what cannot be computed. 2. The tool says so in words."""
    assert calculate.invoke({"expression": expression}).startswith("Cannot compute that:")


def test_time_zones() -> None:
    """1. A known zone, then names that are none. 2. A time with its offset; a hint."""
    assert "UTC+0000" in current_time.invoke({})
    assert "UTC+0530" in current_time.invoke({"timezone": "Asia/Kolkata"})
    for name in ("Mars/Base", "../etc/passwd", "", "x\x00"):
        assert "no time zone" in current_time.invoke({"timezone": name})
