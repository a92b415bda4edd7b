"""The repository as the contract tests read it: its root, its services, its files."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Service:
    """One of the four services."""

    name: str

    @property
    def folder(self) -> Path:
        return ROOT / "services" / self.name

    @property
    def package(self) -> Path:
        return self.folder / self.name.replace("-", "_")

    @cached_property
    def modules(self) -> dict[Path, ast.Module]:
        """Every module of it, parsed."""
        return {path: ast.parse(path.read_text(), str(path)) for path in sorted(self.package.rglob("*.py"))}


SERVICES = [Service(name) for name in ("api-gateway", "event-relay", "run-worker", "sandbox-provisioner")]

PRODUCT = ["services", "libs", "protos/contract", "deploy", "loadtest"]
"""Folders whose Python is the product's, tests and generated code aside."""


def product_modules() -> Iterator[tuple[Path, ast.Module]]:
    """Yield every Python file of the product, parsed."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text(), str(path))


def committed_files() -> list[Path]:
    """Return what is, or would be, committed: tracked and new files that are not ignored."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        timeout=30,
    )
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Yield the calls whose last name is one of `names`: `f(…)` and `x.f(…)` alike."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in names:
            yield node


def called(node: ast.Call) -> str:
    """Return the last name of what a call calls, or nothing."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def where(path: Path, node: ast.expr) -> str:
    """Return file:line, as a failure should name it."""
    return f"{path.relative_to(ROOT)}:{node.lineno}"
