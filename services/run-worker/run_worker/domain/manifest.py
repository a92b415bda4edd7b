"""What a run will execute, as facts without secrets and without prompts, and a fingerprint of them.

Invariant: the fingerprint does not depend on the order of keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from run_worker.domain.encoding import json_bytes


def manifest(
    *, agent: str, digest: str, model: str, limits: Mapping[str, float], durability: str, revision: str
) -> dict[str, Any]:
    """Return the manifest: agent and graph digest, model name, time limits in seconds, durability, code revision."""
    return {
        "agent": agent,
        "digest": digest,
        "model": model,
        "limits": dict(limits),
        "durability": durability,
        "revision": revision,
    }


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return the sha256 of `facts` as JSON with sorted keys, in hex."""
    ordered = orjson.dumps(orjson.loads(json_bytes(facts)), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(ordered).hexdigest()
