"""Rules of the house that a reader of the source can check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.contract.tree import ROOT, SERVICES, Service, calls, committed_files, product_modules, where

EXEMPTION = re.compile(
    r"#\s*(?:ruff:\s*)?(?:noqa|type:\s*ignore)"
    r"(?P<rule>:\s*[A-Z]+[0-9]+(?:,\s*[A-Z]+[0-9]+)*|\[[a-z, -]+\])?(?P<rest>.*)"
)
REASON = re.compile(r"(?:#|-)\s*\S+")
STRICT = ROOT / "tests/support/strict.py"  # turns a skip into a failure, so it names them
PUBSUB = re.compile(r"pubsub|[ps]?subscribe\s*\(|\bs?publish\s*\(", re.IGNORECASE)


def test_no_pubsub() -> None:
    """1. Read the code of every service and library that imports redis.  2. None of it publishes or subscribes."""
    found = []
    for path, tree in product_modules():
        imports = {
            (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        # The load ladder counts Pub/Sub clients of Redis, to show that there are none.
        if "loadtest" not in path.parts and any(re.match(r"redis\b|headrace_kit\.redis", name) for name in imports):
            found += [
                f"{path.relative_to(ROOT)}:{number} {line.strip()}"
                for number, line in enumerate(path.read_text().splitlines(), start=1)
                if PUBSUB.search(line.split("#")[0])
            ]
    assert found == []


def test_no_blocking_redis_reads() -> None:
    """1. Read every command sent to Redis.  2. None of them holds a connection of a shared pool while it waits."""
    reads = [
        (where(path, call), call) for path, tree in product_modules() for call in calls(tree, "xread", "xreadgroup")
    ]
    blocking = [
        where(path, call)
        for path, tree in product_modules()
        for call in calls(tree, "blpop", "brpop", "blmove", "blmpop", "bzpopmin", "bzpopmax", "bzmpop")
    ]
    blocking += [place for place, call in reads if any(keyword.arg == "block" for keyword in call.keywords)]
    assert blocking == []


def constant(service: Service, path: Path, node: ast.expr) -> object:
    """Return the value of a literal, or of the module-level name that stands for one anywhere in the service."""
    if isinstance(node, ast.Constant):
        return node.value
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    trees = [service.modules[path], *service.modules.values()]
    for tree in trees:
        for statement in tree.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return ast.literal_eval(statement.value)  # type: ignore[attr-defined]  # Assign and AnnAssign have one
    raise AssertionError(f"{where(path, node)}: {ast.unparse(node)} is no literal")


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_the_code_asks_for_the_schema_that_there_is(service: Service) -> None:
    """1. Find what a service requires before it is ready.  2. Each version is the number of its owner's newest file."""
    required = {}
    for path, tree in service.modules.items():
        for call in calls(tree, "require_schema"):
            version = next(keyword.value for keyword in call.keywords if keyword.arg == "code_version")
            required[constant(service, path, call.args[0])] = constant(service, path, version)
    there = {name: len(list((ROOT / "services" / str(name) / "migrations").glob("*.sql"))) for name in required}
    assert required
    assert required == there


def test_migrations_are_numbered_without_holes() -> None:
    """1. List each owner's migrations.  2. They count 0001, 0002, …"""
    for service in SERVICES:
        numbers = [int(path.name[:4]) for path in sorted((service.folder / "migrations").glob("*.sql"))]
        assert numbers == list(range(1, len(numbers) + 1)), service.name


def test_reasons_are_stable_words() -> None:
    """1. Read every `reason=` of an error.  2. It is UPPER_SNAKE, as clients switch on it."""
    errors = {"InvalidArgument", "OutOfRange", "Unauthenticated", "PermissionDenied", "NotFound", "AlreadyExists"}
    errors |= {"FailedPrecondition", "Aborted", "ResourceExhausted", "DeadlineExceeded", "Unavailable", "ServiceError"}
    wrong = [
        where(path, call)
        for path, tree in product_modules()
        for call in calls(tree, *errors)
        for keyword in call.keywords
        if keyword.arg == "reason"
        and isinstance(keyword.value, ast.Constant)
        and not re.fullmatch(r"[A-Z][A-Z0-9_]{2,62}", str(keyword.value.value))
    ]
    assert wrong == []


def test_no_mocks_no_skips() -> None:
    """1. Read every test.  2. None patches, skips or expects to fail."""
    banned = re.compile(r"mock\.patch|from unittest import mock|unittest\.mock|pytest\.skip|mark\.skip|mark\.xfail")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path not in (Path(__file__), STRICT)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if banned.search(line)
    ]
    assert found == []


def test_exemptions_carry_their_reason() -> None:
    """1. Read every `noqa` and `type: ignore`.  2. It names its rule, and a reason follows on the same line."""
    found = []
    for path in committed_files():
        if path.suffix == ".py" and "gen" not in path.relative_to(ROOT).parts and path != Path(__file__):
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                if (match := EXEMPTION.search(line)) and not (match["rule"] and REASON.search(match["rest"])):
                    found.append(f"{path.relative_to(ROOT)}:{number}")
    assert found == []


def test_nothing_names_the_place_where_it_was_written() -> None:
    """1. Read every committed file.  2. It names no path of a workplace and no address of a package registry."""
    halves = ["/ work/", ". library", "/tmp/ brief", "pypi .org", "python hosted", "registry. npmjs", "deb. debian.org"]
    words = [half.replace(" ", "") for half in halves]  # in one piece they would be found here
    found = []
    for path in committed_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert found == []
