"""Documents that can be checked are checked: decisions are numbered, links lead somewhere, names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.contract.tree import ROOT, committed_files, product_modules

DECISIONS = sorted((ROOT / "docs/adr").glob("*.md"))
DOCUMENTS = [path for path in committed_files() if path.suffix == ".md"]
SOURCES = {".py", ".sql", ".toml", ".proto", ".sh", ""}
VARIABLE = re.compile(r"\bHEADRACE_[A-Z][A-Z_0-9]*[A-Z0-9]\b")

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def test_decisions_are_numbered() -> None:
    """1. List the decisions.  2. Their numbers are unique and have no holes."""
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.name)
def test_a_decision_has_its_parts(path: Path) -> None:
    """1. Read one.  2. Its title carries its number; context, decision and consequences fit on a page."""
    text = path.read_text()
    assert text.startswith(f"# {path.name[:4]}. ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= 40


@each_document
def test_links_lead_somewhere(path: Path) -> None:
    """1. Follow every relative link of a document.  2. The file is there, and so is the heading."""
    text = path.read_text()
    targets = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    missing = []
    for link in targets:
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE) if target.suffix == ".md" else []
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        if not target.exists() or (anchor and anchor not in anchors):
            missing.append(link)
    assert missing == []


@each_document
def test_paths_exist(path: Path) -> None:
    """1. Read every `path/of/a/file.ext` in code quotes.  2. It exists: from the root, beside, or in a package."""
    bases = [ROOT, path.parent, *(ROOT / "services").iterdir(), *(ROOT / "libs").iterdir()]
    bases += [ROOT / "deploy", ROOT / "loadtest", ROOT / "protos/contract"]
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|sql|md|toml|proto|sh))`", path.read_text())
    assert [name for name in named if not any((base / name).exists() for base in bases)] == []


@each_document
def test_make_targets_exist(path: Path) -> None:
    """1. Read every `make target` in code quotes or blocks.  2. The Makefile has it."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^|\$ )make ([a-z]+)", path.read_text(), re.MULTILINE))
    assert named - targets == set()


def test_variables_exist() -> None:
    """1. Read every HEADRACE_ variable in a document.  2. Some code reads it: by its name, or as a settings field."""
    named = {
        name for path in DOCUMENTS for name in re.findall(r"\bHEADRACE_[A-Z][A-Z_0-9]*[A-Z0-9]\b", path.read_text())
    }
    code = "\n".join(
        path.read_text()
        for path in committed_files()
        if path.suffix in SOURCES and "tests" not in path.relative_to(ROOT).parts
    )
    fields = {f"HEADRACE_{field.upper()}" for field in re.findall(r"^ {4}([a-z_]+): ", code, re.MULTILINE)}
    words = set(VARIABLE.findall(code))
    assert named - fields - words == set()


COMPUTED = {"THREAD_NOT_FOUND", "REQUEST_NOT_FOUND", "REDIS_UNAVAILABLE", "UNAVAILABLE", "DEADLINE_EXCEEDED"}
"""Reasons that the code puts together from a kind, a store or gRPC's own status."""


def test_reasons_are_documented() -> None:
    """1. Read every `reason=` of an error, in the kit and the services.  2. docs/reasons.md lists exactly these."""
    trees = [tree for path, tree in product_modules() if {"services", "headrace_kit"} & set(path.parts)]
    constants = {
        target.id: statement.value
        for tree in trees
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        if isinstance(target, ast.Name)
    }
    given = [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "reason"
    ]
    values = [constants.get(value.id) if isinstance(value, ast.Name) else value for value in given]
    told = {value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)}
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs/reasons.md").read_text(), re.MULTILINE)
    documented = {reason for row in rows for reason in re.findall(r"`([A-Z_]+)`", row)}
    assert documented == {reason for reason in told if reason.isupper()} | COMPUTED
