"""One budget: the figures add up, and whoever repeats one repeats it truly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from headrace_kit.budget import Budget, BudgetError, load

from tests.contract.tree import ROOT, SERVICES


def test_the_roles_add_up_to_the_client_budget(budget: Budget) -> None:
    """1. Add the CONNECTION LIMITs.  2. They are the 450 of 600 that the design gives to services."""
    assert sum(role.limit for role in budget.roles.values()) == budget.client_budget == 450
    assert budget.max_connections == 600


@pytest.mark.parametrize("executors", [1, 2, 3, 4, 8, 16])
def test_no_role_can_be_overdrawn(budget: Budget, executors: int) -> None:
    """1. Any number of executors.  2. All pools of a role together stay under its limit, one restart included."""
    for role in budget.roles.values():
        processes = role.processes or executors
        assert role.pool_max(executors=executors) * (processes + 1) <= role.limit, role.name


def test_the_slots_add_up(budget: Budget) -> None:
    """1. Add the slots.  2. 100 for runs and 40 that runs can never take are all 140."""
    slots = dict(budget.slots)
    assert slots.pop("total") == sum(slots.values()) == 140
    assert slots["runs"] == 100


def test_a_budget_that_does_not_hold_is_refused(tmp_path: Path, budget_path: Path) -> None:
    """1. One role gets a connection more.  2. Loading the file fails, and the message shows the table."""
    text = budget_path.read_text()
    wrong = tmp_path / "budget.toml"
    wrong.write_text(text.replace("limit = 60\n", "limit = 61\n", 1))
    assert wrong.read_text() != text
    with pytest.raises(BudgetError, match=r"sum 451(.|\n)*gateway +61"):
        load(wrong)


def test_migrations_grant_only_to_roles_of_the_budget(budget: Budget) -> None:
    """1. Read every `{{role:…}}` of the migrations.  2. Each is a role with a share; every share is used by one."""
    granted = {
        role
        for service in SERVICES
        for path in sorted((service.folder / "migrations").glob("*.sql"))
        for role in re.findall(r"\{\{role:([a-z_]+)\}\}", path.read_text())
    }
    assert granted == set(budget.roles)


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "docs/operations.md"])
def test_documents_state_the_same_shares(budget: Budget, document: str) -> None:
    """1. Read the rows `| `role` | limit |` of a document.  2. They are all roles, with their limits."""
    rows = re.findall(r"^\|.*`headrace_([a-z_]+)`\s*\|\s*(\d+)\s*\|", (ROOT / document).read_text(), re.MULTILINE)
    assert {role: int(limit) for role, limit in rows} == {role.name: role.limit for role in budget.roles.values()}


def test_the_operators_table_is_the_file(budget: Budget) -> None:
    """1. Read the whole table of shares in docs/operations.md.  2. Every column is the budget file's."""
    row = re.compile(r"^\|[^|]*\| `headrace_([a-z_]+)` \| (\d+) \| ([^|]+) \| (\d+) \| (\d+) s \|$", re.MULTILINE)
    told = {match[1]: match.groups()[1:] for match in row.finditer((ROOT / "docs/operations.md").read_text())}
    assert told == {
        role.name: (
            str(role.limit),
            str(role.processes) if role.processes else "one per executor",
            str(role.pool_cap),
            str(role.statement_timeout_ms // 1000),
        )
        for role in budget.roles.values()
    }


def test_the_operators_limits_are_the_files(budget: Budget) -> None:
    """1. Read the limits that answer 429 in docs/operations.md.  2. They are the budget file's."""
    text = (ROOT / "docs/operations.md").read_text()
    limits = budget.limits
    assert f"`active_runs_per_user` ({limits['active_runs_per_user']}) is not enforced yet" in text
    assert f"| pending runs per user, in all | {limits['pending_per_user']}, {limits['pending_total']:,} |" in text
    assert f"per gateway | {limits['streams_per_user']}, {limits['streams_per_replica']:,} |" in text
    assert f"| request body (answers 413) | {limits['body_bytes'] // 2**20} MiB |" in text
