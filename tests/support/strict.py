"""Leaving a test out is said loudly; with HEADRACE_STRICT=1 it is a failure. Tests that need an engine ask for one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    detail = report.longrepr
    return str(detail[2]).removeprefix("Skipped: ") if isinstance(detail, tuple) else str(detail)


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and os.environ.get("HEADRACE_STRICT") == "1" and not hasattr(report, "wasxfail"):
        report.longrepr = f"left out, which HEADRACE_STRICT=1 forbids: {_reason(report)}"
        report.outcome = "failed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _judge(report)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("DOCKER_HOST") or Path("/var/run/docker.sock").exists():
        return
    for item in items:
        if item.get_closest_marker("docker"):
            item.add_marker(pytest.mark.skip(reason="no container engine here; install docker.io and start it"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if not left_out:
        return
    terminalreporter.section(f"LEFT OUT: {sum(left_out.values())} tests", yellow=True, bold=True)
    for reason, count in left_out.items():
        terminalreporter.write_line(f"  {count} × {reason}")
