"""Where the server is and with which key: arguments, else the environment, else `.run/state.json` found upwards.

Invariant: a key from `.run/state.json` is only ever sent to the address in that same file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_client.errors import NotConfigured

STATE_FILE = Path(".run") / "state.json"


@dataclass(frozen=True, slots=True)
class Target:
    """A server and the key for it."""

    base_url: str
    api_key: str = field(repr=False)


def find_target(
    base_url: str | None = None,
    api_key: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    start: Path | None = None,
) -> Target:
    """Return the server to talk to.

    Raises NotConfigured with the next step when the address or its key is not to be found.
    """
    url = base_url or environ.get("HEADRACE_URL")
    key = api_key or environ.get("HEADRACE_API_KEY")
    state = load_state(environ=environ, start=start)
    local = str(state.get("base_url") or "").rstrip("/")
    url = (url or local).rstrip("/")
    if not url:
        raise NotConfigured(
            "no server: start one here with `headrace up`, or set HEADRACE_URL and HEADRACE_API_KEY", reason="NO_SERVER"
        )
    if not key and url == local:
        key = state.get("api_key")
    if not key:
        raise NotConfigured(f"no API key for {url}: set HEADRACE_API_KEY", reason="NO_API_KEY")
    return Target(url, str(key))


def load_state(*, environ: Mapping[str, str] = os.environ, start: Path | None = None) -> dict[str, Any]:
    """Return the deployment's state, or an empty mapping where none is running."""
    path = state_path(environ=environ, start=start)
    if path is None:
        return {}
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NotConfigured(f"{path} is not readable: {error}", reason="STATE_UNREADABLE") from None
    return state if isinstance(state, dict) else {}


def state_path(*, environ: Mapping[str, str] = os.environ, start: Path | None = None) -> Path | None:
    """Return the state file that is in force: HEADRACE_RUN_DIR's, else the nearest one upwards."""
    if run_dir := environ.get("HEADRACE_RUN_DIR"):
        path = Path(run_dir) / "state.json"
        return path if path.is_file() else None
    here = (start or Path.cwd()).resolve()
    return next((folder / STATE_FILE for folder in (here, *here.parents) if (folder / STATE_FILE).is_file()), None)
