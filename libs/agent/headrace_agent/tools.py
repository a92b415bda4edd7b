"""Two tools that touch nothing outside: the time, and arithmetic."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from langchain_core.tools import tool

EXPRESSION_CHARACTERS_MAX = 500
"""An expression that a person could check."""

EXPONENT_MAX = 1000
"""With BITS_MAX it bounds what `**` may cost."""

BITS_MAX = 10_000
"""Size of any number on the way; Python itself prints no integer much larger."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


@tool
def current_time(timezone: str = "UTC") -> str:
    """Return the current date and time. `timezone` is an IANA name such as Europe/Berlin."""
    try:
        zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"There is no time zone {timezone[:64]!r}; use an IANA name such as Europe/Berlin."
    return datetime.now(zone).strftime("%A %Y-%m-%d %H:%M:%S %Z (UTC%z)")


@tool
def calculate(expression: str) -> str:
    """Compute an arithmetic expression of numbers, + - * / // % ** and parentheses."""
    try:
        return str(evaluate(expression))
    except (ValueError, ArithmeticError) as error:
        return f"Cannot compute that: {error}"


def evaluate(expression: str) -> int | float:
    """Return the value of an arithmetic expression.

    Raises ValueError for what is not arithmetic or would grow too large, ArithmeticError as Python does.
    """
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise ValueError(f"the expression is longer than {EXPRESSION_CHARACTERS_MAX} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError("it is not an arithmetic expression") from None
    return _value(tree.body)


def _value(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and (unary := _UNARY.get(type(node.op))):
        return _bounded(unary(_value(node.operand)))
    if isinstance(node, ast.BinOp) and (binary := _BINARY.get(type(node.op))):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            _check_power(left, right)
        return _bounded(binary(left, right))
    raise ValueError(f"{ast.unparse(node)[:40]!r} is not arithmetic")


def _check_power(base: float, exponent: float) -> None:
    if abs(exponent) > EXPONENT_MAX or (isinstance(base, int) and base.bit_length() * abs(exponent) > BITS_MAX):
        raise ValueError("the power is too large")


def _bounded(value: Any) -> int | float:
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    if isinstance(value, int) and value.bit_length() > BITS_MAX:
        raise ValueError("the number is too large")
    return value  # type: ignore[no-any-return]  # the operators of numbers give numbers
