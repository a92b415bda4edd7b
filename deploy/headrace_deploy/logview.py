"""Shows the services' log files together, each line with its service's name."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from typing import IO

import typer

from headrace_deploy.state import StateError

POLL_SECONDS = 0.2
_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "white")


class _Tail:
    """One file that grows; a rotated one is begun anew."""

    def __init__(self, path: Path, *, lines: int) -> None:
        self._path = path
        self._file: IO[str] = path.open(errors="replace")
        self._inode = path.stat().st_ino
        self.first = list(deque(self._file, maxlen=lines))

    def more(self) -> list[str]:
        found = self._file.readlines()
        if self._path.exists() and self._path.stat().st_ino != self._inode:
            self._file.close()
            self._file = self._path.open(errors="replace")
            self._inode = self._path.stat().st_ino
            found += self._file.readlines()
        return found

    def close(self) -> None:
        self._file.close()


def show(folder: Path, *, only: str, lines: int, follow: bool, color: bool = False) -> None:
    """Print the last `lines` of each log and, with `follow`, what comes, until interrupted.

    Raises StateError when there is no such log.
    """
    paths = {path.stem: path for path in sorted(folder.glob("*.log"))} if folder.is_dir() else {}
    if not paths:
        raise StateError(f"no logs in {folder}; run `make up`")
    if only and only not in paths:
        raise StateError(f"no log of {only!r}; there are: {', '.join(paths)}")
    chosen = {only: paths[only]} if only else paths
    tails = {name: _Tail(path, lines=lines) for name, path in chosen.items()}
    try:
        for name, tail in tails.items():
            _print(name, tail.first, list(tails), color=color)
        while follow:
            for name, tail in tails.items():
                _print(name, tail.more(), list(tails), color=color)
            time.sleep(POLL_SECONDS)
    finally:
        for tail in tails.values():
            tail.close()


def _print(name: str, lines: list[str], names: list[str], *, color: bool) -> None:
    width = max(len(known) for known in names)
    prefix = f"{name:<{width}} "
    if color:
        prefix = typer.style(prefix, fg=_COLORS[names.index(name) % len(_COLORS)])
    for line in lines:
        sys.stdout.write(f"{prefix}{line.rstrip()}\n")
    sys.stdout.flush()
