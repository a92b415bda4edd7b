"""Graphs from langgraph.json files: loaded once in each executor, and once in a throw-away process at start.

Invariant: a loaded graph is never changed; each run gets a copy with its own fenced checkpointer. Nothing is installed
and no network is used here, but a graph file is code, and loading it runs it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import headrace_agent
import orjson
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from run_worker.adapters.blame import place_of
from run_worker.adapters.schemas import bare_schema

DURABILITIES: Final = ("async", "sync", "exit")
_SETTINGS: Final = frozenset(
    {
        "durability",
        "run_timeout_seconds",
        "model_first_byte_seconds",
        "model_silence_seconds",
        "tool_timeout_seconds",
        "recursion_limit",
    }
)


class GraphError(Exception):
    """A graph cannot be used; says which file and, where it is about one, which graph."""

    def __init__(self, message: str, *, file: Path, graph: str = "") -> None:
        super().__init__(f"{file}: {f'graph {graph!r}: ' if graph else ''}{message}")
        self.file = file
        self.graph = graph


class GraphFileMissing(GraphError):
    """langgraph.json, or a file that it names, is not there."""


class GraphFileInvalid(GraphError):
    """langgraph.json is not what it should be."""


class GraphImportFailed(GraphError):
    """Running the graph's file raised."""


class GraphAttributeMissing(GraphError):
    """The file has no such attribute."""


class NotAGraph(GraphError):
    """The attribute is neither a graph nor a function that makes one."""


class GraphNameTaken(GraphError):
    """Two graphs have one name."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Section `headrace.agents.<name>` of langgraph.json; None is the budget file's figure."""

    durability: str = "async"
    run_timeout_seconds: float | None = None
    model_first_byte_seconds: float | None = None
    model_silence_seconds: float | None = None
    tool_timeout_seconds: float | None = None
    recursion_limit: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what differs from the defaults."""
        return {
            name: value
            for name in sorted(_SETTINGS)
            if (value := getattr(self, name)) is not None and (name, value) != ("durability", "async")
        }


@dataclass(frozen=True, slots=True)
class Agent:
    """A loaded graph under its public name."""

    name: str
    description: str
    digest: str
    """sha256 of the graph's file and of its entry in langgraph.json."""
    settings: AgentSettings
    graph: Pregel[Any, Any, Any, Any]
    input_schema: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] = field(default_factory=dict)
    per_run: Callable[[Mapping[str, Any]], Any] | None = None
    """A factory that takes the run's config, when the author gave one."""

    async def for_run(self, config: Mapping[str, Any], checkpointer: Any) -> Any:
        """Return the graph for one run, with its own checkpointer."""
        graph = self.graph
        if self.per_run is not None:
            graph = _compiled(await _awaited(self.per_run(config)), file=Path(), name=self.name)
        return graph.copy(update={"checkpointer": checkpointer})


def builtin_file() -> Path:
    """Return the langgraph.json of the built-in agents."""
    return Path(headrace_agent.__file__).parent / "langgraph.json"


async def load_graphs(files: Sequence[Path]) -> tuple[dict[str, Agent], list[GraphError]]:
    """Load every graph of every file; return agents by name, and an error for each that could not be loaded."""
    agents: dict[str, Agent] = {}
    owners: dict[str, Path] = {}
    errors: list[GraphError] = []
    for file in files:
        try:
            entries, settings = _read(file)
        except GraphError as error:
            errors.append(error)
            continue
        for name, entry in entries.items():
            try:
                if name in owners:
                    raise GraphNameTaken(_taken_by(owners[name]), file=file, graph=name)
                owners[name] = file
                agents[name] = await _load(file, name, entry, settings.get(name, AgentSettings()))
            except GraphError as error:
                errors.append(error)
    return agents, errors


def _taken_by(owner: Path) -> str:
    if owner == builtin_file():
        return "the name is taken by a built-in agent; take another one"
    return f"the name is taken by a graph of {owner}; take another one"


async def check_graphs(files: Sequence[Path]) -> list[GraphError]:
    """Load everything as an executor would, built-in agents too, and return what is wrong."""
    return (await load_graphs([builtin_file(), *files]))[1]


def _read(file: Path) -> tuple[dict[str, Any], dict[str, AgentSettings]]:
    try:
        raw = orjson.loads(file.read_bytes())
    except OSError as error:
        raise GraphFileMissing(f"cannot be read ({error.strerror})", file=file) from error
    except orjson.JSONDecodeError as error:
        raise GraphFileInvalid(f"is not JSON ({error})", file=file) from error
    if not isinstance(raw, dict) or not isinstance(raw.get("graphs"), dict):
        raise GraphFileInvalid("needs an object `graphs`", file=file)
    root = file.resolve().parent
    for dependency in raw.get("dependencies", []):
        # Only folders: the names of packages are taken as installed.
        folder = (root / str(dependency)).resolve()
        if str(dependency).startswith(".") and not folder.is_dir():
            raise GraphFileMissing(f"dependency {dependency!r} is not a folder", file=file)
        if folder.is_dir() and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    _apply_env(raw.get("env"), file, root)
    section = raw.get("headrace", {})
    given = section.get("agents", {}) if isinstance(section, dict) else None
    if not isinstance(given, dict):
        raise GraphFileInvalid("`headrace.agents` must be an object", file=file)
    if unknown := set(given) - set(raw["graphs"]):
        raise GraphFileInvalid(
            f"`headrace.agents` names no graph: {', '.join(sorted(unknown))}; there are: {_listed(raw['graphs'])}",
            file=file,
        )
    return raw["graphs"], {name: _settings(file, name, value) for name, value in given.items()}


def _apply_env(env: Any, file: Path, root: Path) -> None:
    """Put a mapping, or the lines of a file, into the environment; what is set already stays."""
    if isinstance(env, str) and env:
        try:
            lines = (root / env).read_text().splitlines()
        except OSError as error:
            raise GraphFileMissing(f"env file {env!r} cannot be read ({error.strerror})", file=file) from error
        pairs = [line.removeprefix("export ").split("=", 1) for line in lines if "=" in line and line[:1] != "#"]
        env = {key.strip(): value.strip().strip("\"'") for key, value in pairs}
    if isinstance(env, Mapping):
        for key, value in env.items():
            os.environ.setdefault(str(key), str(value))


def _settings(file: Path, name: str, given: Any) -> AgentSettings:
    if not isinstance(given, dict) or (unknown := set(given) - _SETTINGS):
        told = (
            f"unknown {_listed(unknown)}; there are: {_listed(_SETTINGS)}"
            if isinstance(given, dict)
            else "not an object"
        )
        raise GraphFileInvalid(f"settings: {told}", file=file, graph=name)
    for key, value in given.items():
        if key == "durability":
            if value not in DURABILITIES:
                told = f"durability {str(value)[:32]!r} is none of {', '.join(DURABILITIES)}"
                raise GraphFileInvalid(told, file=file, graph=name)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise GraphFileInvalid(f"{key} must be a number above 0", file=file, graph=name)
    return AgentSettings(**given)


async def _load(file: Path, name: str, entry: Any, settings: AgentSettings) -> Agent:
    spec = entry.get("path") if isinstance(entry, dict) else entry
    description = str(entry.get("description", "")) if isinstance(entry, dict) else ""
    if not isinstance(spec, str) or ":" not in spec:
        raise GraphFileInvalid("must be './file.py:attribute' or {'path': …}", file=file, graph=name)
    target, _, attribute = spec.rpartition(":")
    module, source = _import(file, name, target)
    found = getattr(module, attribute, None)
    if found is None:
        raise GraphAttributeMissing(
            f"{target} has no {attribute!r}; it has: {_listed(_candidates(module))}", file=file, graph=name
        )
    per_run = None
    if callable(found) and not isinstance(found, Pregel | StateGraph):
        takes_config = _takes_config(found, file, name)
        if takes_config:
            per_run = found
        try:
            found = await _awaited(found({"configurable": {}}) if takes_config else found())
        except Exception as error:
            raise GraphImportFailed(f"{attribute}() raised {_told(error)}", file=file, graph=name) from error
    graph = _compiled(found, file=file, name=name)
    digest = hashlib.sha256(source + orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return Agent(
        name=name,
        description=description,
        digest=digest,
        settings=settings,
        graph=graph,
        input_schema=bare_schema(graph.get_input_jsonschema, graph=name, which="input"),
        output_schema=bare_schema(graph.get_output_jsonschema, graph=name, which="output"),
        per_run=per_run,
    )


def _import(file: Path, name: str, target: str) -> tuple[ModuleType, bytes]:
    """Import a file by path, as part of its package if it is in one, or a module by its dotted name."""
    try:
        if not target.endswith(".py") and "/" not in target:
            module = importlib.import_module(target)
            source = Path(module.__file__).read_bytes() if module.__file__ else b""
            return module, source
        path = (file.resolve().parent / target).resolve()
        if not path.is_file():
            raise GraphFileMissing(f"{target} is not a file", file=file, graph=name)
        return _import_file(path), path.read_bytes()
    except GraphError:
        raise
    except Exception as error:
        raise GraphImportFailed(f"{target} raised {_told(error)}", file=file, graph=name) from error


def _import_file(path: Path) -> ModuleType:
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if len(parts) > 1:
        # In a package: imported by its dotted name, so that its relative imports work.
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        module = importlib.import_module(".".join(parts))
        if module.__file__ is None or Path(module.__file__).resolve() != path:
            raise ImportError(f"another package is called {parts[0]!r}")
        return module
    # Alone: under a name of its own, so that two folders may both have an agent.py.
    unique = f"headrace_graph_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if unique in sys.modules:
        return sys.modules[unique]
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def _takes_config(factory: Callable[..., Any], file: Path, name: str) -> bool:
    required = [
        p
        for p in inspect.signature(factory).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) > 1:
        raise NotAGraph("a factory takes nothing or the run's config", file=file, graph=name)
    return len(required) == 1


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _compiled(found: Any, *, file: Path, name: str) -> Pregel[Any, Any, Any, Any]:
    if isinstance(found, StateGraph):
        found = found.compile()
    if not isinstance(found, Pregel):
        kind = type(found).__name__
        article = "an" if kind[:1].lower() in "aeiou" else "a"
        raise NotAGraph(f"is {article} {kind}, not a graph", file=file, graph=name)
    return found


def _told(error: BaseException) -> str:
    """Return an exception with the author's line that it came from."""
    place = place_of(error)
    # A SyntaxError's text names file and line too.
    text = (error.msg if isinstance(error, SyntaxError) else None) or str(error)
    return f"{type(error).__name__}: {text}" + (f" ({place})" if place else "")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _candidates(module: ModuleType) -> list[str]:
    """Return the names in a module that could be meant: its graphs, or else its own functions."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    graphs = [name for name, value in public.items() if isinstance(value, Pregel | StateGraph)]
    own = [n for n, v in public.items() if inspect.isfunction(v) and v.__module__ == module.__name__]
    return graphs or own
