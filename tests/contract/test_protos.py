"""The protos and what is generated from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.contract.tree import ROOT


def generated(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.suffix in {".py", ".pyi"})
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_the_generated_code_is_that_of_the_protos(tmp_path: Path) -> None:
    """1. Generate again, elsewhere.  2. Every file is byte for byte the committed one."""
    copy = tmp_path / "protos"
    shutil.copytree(ROOT / "protos/headrace", copy / "headrace")
    shutil.copy(ROOT / "protos/generate.sh", copy)
    (copy / "gen").mkdir()
    subprocess.run(
        ["sh", str(copy / "generate.sh")], check=True, timeout=60, env={**os.environ, "PYTHON": sys.executable}
    )

    ours, theirs = generated(ROOT / "protos/gen/headrace"), generated(copy / "gen/headrace")
    assert sorted(ours) == sorted(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []
