"""JSON schemas of graphs as they are published: their structure, without the prose of LangChain's message types.

With it they were 35 KB an agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from run_worker.domain.encoding import json_text

_PROSE: Final = frozenset({"description", "title"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value maps names, which may be any word, to schemas."""
_VALUES: Final = frozenset({"default", "const", "enum", "examples", "required"})
"""Keywords whose value is data."""

log = structlog.get_logger("headrace.graphs")


def bare_schema(make: Callable[[], Mapping[str, Any]], *, graph: str, which: str) -> Mapping[str, Any]:
    """Return the bare JSON schema that `make` gives; {} and a line in the log where a graph's types have none."""
    try:
        schema = make()
        json_text(schema)
    except Exception as error:  # noqa: BLE001  # types of the author's: a graph without a schema still runs
        told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        log.warning("graph has no JSON schema; {} is published", graph=graph, schema=which, error=told)
        return {}
    bare: Mapping[str, Any] = without_prose(schema)
    return bare


def without_prose(schema: Any) -> Any:
    """Return a schema without `description` and `title`, at every depth; properties of those names stay."""
    if isinstance(schema, list):
        return [without_prose(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _value(key, value) for key, value in schema.items() if key not in _PROSE}


def _value(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: without_prose(item) for name, item in value.items()}
    return without_prose(value)
