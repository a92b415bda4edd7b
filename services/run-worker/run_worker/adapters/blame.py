"""Where in the author's own code an exception came from: what their error messages point to.

Own code is what is neither installed nor part of Python nor of this house.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import headrace_agent
import headrace_kit

_NODE: Final = re.compile(r"(?:During|Before) task with name '(.*)' and (?:id|path) ", re.DOTALL)
"""The note that LangGraph puts on what a node raises; the first is the innermost node's."""
_LINKS_MAX: Final = 20
"""Causes that are followed: enough for any real chain, and an end for a circular one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file; the file's name without its folders, which are this host's affair."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def place_of(error: BaseException) -> Place | None:
    """Return the innermost line of the author's own code that raised, or called what raised; None if there is none.

    When the exception itself went through none of it, its causes and the members of a group are asked. The file that a
    SyntaxError is about counts as raising it.
    """
    for link in _links(error):
        if isinstance(link, SyntaxError) and link.filename and link.lineno and _is_own(link.filename):
            return Place(Path(link.filename).name, link.lineno)
        own = [frame for frame in traceback.extract_tb(link.__traceback__) if _is_own(frame.filename)]
        if own:
            return Place(Path(own[-1].filename).name, own[-1].lineno or 0)
    return None


def node_of(error: BaseException) -> str | None:
    """Return the node that raised, None when LangGraph does not say."""
    for link in _links(error):
        for note in getattr(link, "__notes__", ()):
            found = _NODE.match(note) if isinstance(note, str) else None
            if found:
                return found[1]
    return None


def _links(error: BaseException) -> Iterator[BaseException]:
    waiting: list[BaseException | None] = [error]
    for _ in range(_LINKS_MAX):
        link = waiting.pop(0) if waiting else None
        if link is None:
            if not waiting:
                return
            continue
        yield link
        waiting += link.exceptions if isinstance(link, BaseExceptionGroup) else ()
        waiting += [link.__cause__, None if link.__suppress_context__ else link.__context__]


def _is_own(filename: str) -> bool:
    path = Path(filename)
    if not path.is_absolute() or not path.is_file():
        return False  # "<string>", "<frozen importlib._bootstrap>"
    paths = sysconfig.get_paths()
    others = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    others += [str(Path(file).parent) for file in (headrace_agent.__file__, headrace_kit.__file__) if file]
    others.append(str(Path(__file__).parent.parent))
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not installed and not any(path.is_relative_to(other) for other in others)
