"""Traces speak the words of one registry, `headrace_contract.telemetry`: a span that is not there is a defect."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from headrace_contract import telemetry

from tests.contract.tree import ROOT, calls, product_modules, where

NAMED_BY_A_PROTOCOL = {
    "libs/kit/headrace_kit/grpc_server.py": "<package>.<Service>/<Method>",
    "services/api-gateway": "<METHOD> <route>",
}
"""Spans whose name is a value, as OpenTelemetry's RPC and HTTP conventions ask."""

CONSTANTS = {name: value for name, value in vars(telemetry).items() if name.startswith("SPAN_")}


def registered(name: ast.expr) -> bool:
    """Tell whether a span's name is taken from the registry; GenAI spans may add what they are about behind it."""
    match name:
        case ast.Constant(value=str(text)):
            return text in telemetry.SPANS
        case ast.Name(id=constant) | ast.Attribute(attr=constant):
            return constant in CONSTANTS
        case ast.JoinedStr(values=[ast.FormattedValue(value=first), *_]):
            return registered(first)
    return False


def by_protocol(path: Path) -> bool:
    return any(str(path.relative_to(ROOT)).startswith(prefix) for prefix in NAMED_BY_A_PROTOCOL)


def test_every_span_is_registered() -> None:
    """1. Read every start of a span in the product.  2. Its name is the registry's, or a protocol's."""
    strangers = [
        where(path, call)
        for path, tree in product_modules()
        for call in calls(tree, "start_as_current_span", "start_span")
        if not (call.args and registered(call.args[0])) and not by_protocol(path)
    ]
    assert strangers == []


def test_the_registry_is_whole() -> None:
    """1. Compare the constants with the sets.  2. SPANS holds every SPAN_ constant, once each."""
    assert set(CONSTANTS.values()) == telemetry.SPANS
    assert len(set(CONSTANTS.values())) == len(CONSTANTS)


def test_every_registered_span_is_started_somewhere() -> None:
    """1. Read the names that the product uses.  2. No constant of the registry is left over."""
    used = {
        node.id if isinstance(node, ast.Name) else node.attr
        for path, tree in product_modules()
        if path.name != "telemetry.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }
    assert set(CONSTANTS) - used == set()


def test_our_attributes_are_registered() -> None:
    """1. Read every string `headrace.<word>` but loggers' and tracers' names.  2. It is a registered name."""
    ours = telemetry.ATTRIBUTES | telemetry.SPANS
    strangers = []
    for path, tree in product_modules():
        exempt = {id(a) for call in calls(tree, "get_logger", "getLogger", "get_tracer") for a in call.args}
        strangers += [
            f"{where(path, node)} {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"headrace\.[a-z_]+", node.value)
            and id(node) not in exempt
            and node.value not in ours
        ]
    assert strangers == []
