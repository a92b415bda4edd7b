"""Where the model provider is: the configured address checked, and its host and port as errors may name them."""

from __future__ import annotations

from urllib.parse import urlsplit

from headrace_agent.errors import ModelRefused

SETTING = "HEADRACE_MODEL_BASE_URL"
DEFAULT_PORTS = {"http": 80, "https": 443}
REASON = "model_not_configured"


def checked(base_url: str, secret: str = "") -> str:
    """Return `base_url` without its last slash.

    Raises ModelRefused, which no second try can change, for what is no http address. `secret` and a user's name and
    password in the address are not in its text.
    """
    url = base_url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
        named = parts.username is not None
    except ValueError:  # a port that is no number, half a bracket
        usable = named = False
    if usable and named and secret:
        raise ModelRefused(
            f"{SETTING} holds a user's name and there is an API key too; HTTP takes one of the two",
            status=None,
            reason=REASON,
        )
    if usable and url.isprintable() and " " not in url:
        return url
    told = url.rpartition("@")[2]
    told = told.replace(secret, "***") if secret else told
    hint = f"; write http://{told}" if "://" not in url else ""
    raise ModelRefused(
        f"the address of the model provider, {told[:200]!r}, is no http(s) address{hint} ({SETTING}, or base_url of "
        "ChatModel)",
        status=None,
        reason=REASON,
    )


def host_and_port(url: str) -> str:
    """Return `host:port` of a checked address, without a user's name and password."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or DEFAULT_PORTS[parts.scheme]}"
