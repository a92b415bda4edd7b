"""What is wrong with a field of a body, in plain words: what is allowed there, never the value that came.

pydantic's own sentences speak of Python ("Tuple should have at least 1 item after validation"); a caller has JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import ErrorDetails

_TYPES = {
    "string_type": "must be a string",
    "string_pattern_mismatch": "must not be empty",
    "dict_type": "must be a JSON object",
    "list_type": "must be an array",
    "tuple_type": "must be an array",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "missing": "is required",
}


def plain_words(error: ErrorDetails, *, known: Sequence[str]) -> str:
    """Return the sentence for one of pydantic's errors; `known` are the fields that the body may have."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in ("one_input", "nul"):
        return error["msg"]
    if kind == "extra_forbidden":
        return f"unknown field; allowed: {', '.join(known)}"
    if kind == "literal_error":
        # Of the declaration, as "'read', 'write' or 'admin'".
        return f"must be {context['expected'].replace(chr(39), '')}"
    if kind == "string_too_short":
        return "must not be empty" if context["min_length"] == 1 else f"must have {context['min_length']} characters"
    if kind == "string_too_long":
        return f"must have at most {context['max_length']} characters"
    if kind == "too_short":
        return f"must hold at least {context['min_length']} value"
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']}"
    return _TYPES.get(kind, "has a value that is not allowed here")
