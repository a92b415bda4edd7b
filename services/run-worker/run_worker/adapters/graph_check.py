"""A test load of all graphs, in a process that is thrown away: what is wrong is told before an executor needs it."""

from __future__ import annotations

import asyncio
import sys

from headrace_kit.settings import load

from run_worker.adapters.graphs import check_graphs
from run_worker.settings import CheckSettings


def main() -> None:
    """Load the built-in graphs and those of HEADRACE_LANGGRAPH_JSON; exit 1 with one line for each that fails."""
    errors = asyncio.run(check_graphs(load(CheckSettings).graph_files()))
    sys.exit("\n".join(str(error) for error in errors) or 0)
