"""Writes requirements.lock from every pyproject.toml of the workspace: names, versions and hashes, no addresses.

`python -m headrace_deploy.lock [--upgrade]`; without `--upgrade` versions stay wherever they still fit.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from headrace_deploy.roles import repository_root

INTERNAL = re.compile(r"headrace-[a-z-]+")
"""Distributions of this repository: installed from their folders, never from a registry."""
PYTHON_MINIMUM = "3.11"


def workspace_projects(root: Path) -> list[Path]:
    """Return the pyproject.toml of the workspace and of each package in it."""
    patterns = ("pyproject.toml", "*/pyproject.toml", "libs/*/pyproject.toml", "services/*/pyproject.toml")
    return sorted(path for pattern in patterns for path in root.glob(pattern) if ".venv" not in path.parts)


def outside_requirements(root: Path) -> list[str]:
    """Return what the workspace needs from a registry: runtime, build and development requirements."""
    found: set[str] = set()
    for path in workspace_projects(root):
        document = tomllib.loads(path.read_text())
        found.update(document["project"].get("dependencies", []))
        found.update(document.get("build-system", {}).get("requires", []))
        for group in document.get("dependency-groups", {}).values():
            found.update(group)
    return sorted(requirement for requirement in found if not INTERNAL.match(requirement))


def main() -> None:
    """Run from the command line."""
    root = repository_root()
    subprocess.run(
        [
            "uv", "pip", "compile", "-", "--output-file", "requirements.lock", "--quiet",
            "--universal", "--python-version", PYTHON_MINIMUM, "--generate-hashes",
            "--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-annotate", *sys.argv[1:],
        ],
        input="\n".join(outside_requirements(root)),
        text=True,
        cwd=root,
        check=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
