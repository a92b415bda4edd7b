"""Four services, one shape: who knows one knows all."""

from __future__ import annotations

import ast
import re
import tomllib
from typing import Any

import pytest
from headrace.executor.v1 import executor_service_pb2
from headrace.relay.v1 import relay_service_pb2
from headrace.run.v1 import run_service_pb2
from headrace.sandbox.v1 import sandbox_service_pb2

from tests.contract.tree import SERVICES, Service

MODULES = {"__init__.py", "__main__.py", "server.py", "settings.py", "errors.py", "py.typed"}
FOLDERS = {"handlers", "loops", "adapters", "domain"}
MAY_BE_THERE = {"run-worker": {"executor.py"}}  # its second process

HEADINGS = ["Owns", "Interface", "Settings", "Inside", "Tests"]

PROTOS: dict[str, list[Any]] = {
    "run-worker": [
        run_service_pb2.DESCRIPTOR.services_by_name["RunService"],
        executor_service_pb2.DESCRIPTOR.services_by_name["ExecutorService"],
    ],
    "event-relay": [relay_service_pb2.DESCRIPTOR.services_by_name["RelayService"]],
    "sandbox-provisioner": [sandbox_service_pb2.DESCRIPTOR.services_by_name["SandboxService"]],
}

each_service = pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)


@each_service
def test_the_same_names_in_the_same_places(service: Service) -> None:
    """1. List a service's package.  2. It holds exactly the modules and folders that every service holds."""
    found = {path.name for path in service.package.iterdir() if path.name != "__pycache__"}
    assert found - MAY_BE_THERE.get(service.name, set()) == MODULES | FOLDERS


@each_service
def test_main_only_starts(service: Service) -> None:
    """1. Read `__main__`.  2. It is at most 15 lines of code, opens with its sentence and imports the server."""
    path = service.package / "__main__.py"
    tree = service.modules[path]
    code = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) <= 15
    assert ast.get_docstring(tree)
    assert f"{service.package.name}.server" in path.read_text() or f"{service.package.name} import server" in str(code)


@each_service
def test_every_module_says_what_it_is_for(service: Service) -> None:
    """1. Read each module.  2. It opens with a sentence."""
    silent = [
        str(path.relative_to(service.folder)) for path, tree in service.modules.items() if not ast.get_docstring(tree)
    ]
    assert silent == []


@each_service
def test_startup_run_and_shutdown_have_names(service: Service) -> None:
    """1. Read the composition root.  2. Start, run and end are functions of their own."""
    tree = service.modules[service.package / "server.py"]
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)}
    assert {"startup", "run", "shutdown"} <= {name.lstrip("_") for name in names}


@each_service
def test_the_same_project_file(service: Service) -> None:
    """1. Read its pyproject.toml.  2. Name, version, Python and build are the house's; no service needs another."""
    project = tomllib.loads((service.folder / "pyproject.toml").read_text())
    ours = project["project"]
    dependencies = {re.split(r"[\[<>=!~ ]", line)[0] for line in ours["dependencies"]}
    assert ours["name"] == f"headrace-{service.name}"
    assert (ours["version"], ours["requires-python"]) == ("0.1.0", ">=3.11")
    assert ours["classifiers"] == ["Private :: Do Not Upload"]
    assert project["build-system"] == {"requires": ["hatchling", "editables"], "build-backend": "hatchling.build"}
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [service.package.name]
    assert dependencies >= {"headrace-kit", "headrace-protos", "grpcio", "pydantic", "structlog"}
    assert dependencies.isdisjoint({f"headrace-{other.name}" for other in SERVICES})


@each_service
def test_the_same_readme(service: Service) -> None:
    """1. Read its README.  2. The title is the service; the headings that a reader looks for are there, in order."""
    text = (service.folder / "README.md").read_text()
    headings = [heading for heading in re.findall(r"^## (.+)$", text, re.MULTILINE) if heading in HEADINGS]
    assert text.startswith(f"# {service.name}\n")
    assert headings == HEADINGS


@pytest.mark.parametrize("name", PROTOS)
def test_every_rpc_has_a_handler(name: str) -> None:
    """1. Take the methods of the protos that a service serves.  2. Its handlers define each of them."""
    (service,) = (service for service in SERVICES if service.name == name)
    handlers = [tree for path, tree in service.modules.items() if "handlers" in path.parts]
    defined = {node.name for tree in handlers for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)}
    wanted = {method.name for descriptor in PROTOS[name] for method in descriptor.methods}
    assert wanted - defined == set()
