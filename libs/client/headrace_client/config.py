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
from urllib.parse import urlsplit

from headrace_client.errors import BadRequest, NotConfigured

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

    Raises NotConfigured with the next step when the address or its key is not to be found, BadRequest when it is none.
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
    _check_url(url)
    if not key and url == local:
        key = state.get("api_key")
    key = str(key or "").strip()
    if not key:
        raise NotConfigured(f"no API key for {url}: set HEADRACE_API_KEY", reason="NO_API_KEY")
    if not (key.isascii() and key.isprintable()):
        raise BadRequest("the API key holds characters that no key has; copy it again", reason="KEY_MALFORMED")
    return Target(url, key)


def _check_url(url: str) -> None:
    """Raise BadRequest for an address that HTTP cannot go to."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half a bracket
        usable = False
    if not usable or not url.isprintable() or " " in url:
        step = "it begins with http:// or https://" if "://" in url else f"write http://{url}"
        raise BadRequest(f"{url!r} is not the address of a server: {step}", reason="URL_INVALID")


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
