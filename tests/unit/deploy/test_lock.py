"""requirements.lock covers the workspace and holds no address."""

from __future__ import annotations

import re

from headrace_deploy.lock import outside_requirements
from headrace_deploy.roles import repository_root

NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_outside_requirement_is_locked_with_hashes() -> None:
    """1. The requirements of all packages are read. 2. Each is in the lock, with a hash. 3. None of ours is."""
    text = (repository_root() / "requirements.lock").read_text()
    locked = {normal(match[1]) for match in re.finditer(r"^([A-Za-z0-9._-]+)==.*\\\n +--hash=sha256:", text, re.M)}
    for requirement in outside_requirements(repository_root()):
        match = NAME.match(requirement)
        assert match is not None
        assert normal(match[0]) in locked, f"{requirement}: run `make lock`"
    assert not [name for name in locked if name.startswith("headrace")]


def test_the_lock_holds_no_address_and_no_path() -> None:
    """1. The lock is read. 2. No line names a registry or a folder of the machine that wrote it."""
    lines = (repository_root() / "requirements.lock").read_text().splitlines()
    assert [line for line in lines if "://" in line or "/" in line or line.lstrip().startswith(("--index", "#"))] == []
