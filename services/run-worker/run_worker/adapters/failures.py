"""What an exception out of a graph means for its run: infrastructure, a supplier, or the graph itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from headrace_agent.errors import ModelRefused, ModelTimeout, ModelUnavailable
from headrace_kit.errors import ResourceExhausted, Unavailable
from langgraph.errors import GraphRecursionError

from run_worker.adapters.blame import node_of, place_of
from run_worker.adapters.graph_tasks import GraphExit
from run_worker.adapters.saver import FenceLost
from run_worker.domain.encoding import clean_text
from run_worker.domain.limits import LeaseOver

MESSAGE_MAX_CHARS: Final = 2_000
"""Of an exception's text in a run's error: enough to understand it, not a dump."""

_SUPPLIER_CLIENTS: Final = frozenset({"openai", "anthropic"})
"""Packages of foreign models' clients, whose errors carry `status_code`."""


class Verdict(Enum):
    """What happens to the run."""

    FAIL = "fail"
    RETRY = "retry"
    """A fault: hand back with a back-off, fail when they are used up."""
    HAND_BACK = "hand_back"
    """Nobody's fault: another attempt goes on."""
    STOP = "stop"
    """The run is another attempt's: write nothing, tell nothing."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The verdict on an exception, and the run's error if it comes to one."""

    verdict: Verdict
    type: str = "graph_error"
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the run's error; a detail that is not known is left out."""
        details = {key: value for key, value in self.details.items() if value is not None}
        return {"type": self.type, "message": self.message, "details": details}


def judge(error: BaseException) -> Failure:
    """Return what `error` means. Infrastructure is found anywhere in its chain, suppliers only in the error itself."""
    chain = list(_chain(error))
    if any(isinstance(link, FenceLost) for link in chain):
        return Failure(Verdict.STOP)
    if any(isinstance(link, LeaseOver | Unavailable | ResourceExhausted) for link in chain):
        return Failure(Verdict.HAND_BACK, type="infrastructure", message=_text(error))
    for own in _own(error):
        if isinstance(own, ModelTimeout):
            return Failure(Verdict.FAIL, "timeout", _text(own), {"which": f"model_{own.which}"})
        if isinstance(own, ModelRefused):
            details = {"status": own.status, "reason": own.reason, "retry_after_seconds": own.retry_after_seconds}
            return Failure(Verdict.FAIL, "model_refused", _text(own), details)
        if isinstance(own, ModelUnavailable):
            return Failure(Verdict.RETRY, "model_unavailable", _text(own), {"status": own.status})
        if isinstance(own, GraphRecursionError):
            return Failure(Verdict.FAIL, "recursion_limit", _text(own))
        if type(own).__module__.partition(".")[0] in _SUPPLIER_CLIENTS:
            return _supplier(own)
    return _raised(error)


def _supplier(error: BaseException) -> Failure:
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and 400 <= status < 500:
        reason = str(getattr(error, "code", "") or "")
        return Failure(Verdict.FAIL, "model_refused", _text(error), {"status": status, "reason": reason})
    if isinstance(status, int) or "Connection" in type(error).__name__ or "Timeout" in type(error).__name__:
        return Failure(Verdict.RETRY, "model_unavailable", _text(error), {"status": status})
    return _raised(error)


def _raised(error: BaseException) -> Failure:
    """Return the failure of a graph whose own code, or something that it called, raised."""
    name = error.name if isinstance(error, GraphExit) else type(error).__name__
    text = clean_text(str(error))[:MESSAGE_MAX_CHARS]
    node, place = node_of(error), place_of(error)
    message = f"{name}: {text}" if text else name
    message += f" in node {clean_text(node)!r}" if node else ""
    message += f" ({place})" if place else ""
    details = {
        "exception": name,
        "node": clean_text(node) if node else None,
        "file": place.file if place else None,
        "line": place.line if place else None,
    }
    return Failure(Verdict.FAIL, "graph_error", clean_text(message), details)


def _own(error: BaseException) -> Iterator[BaseException]:
    yield error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _own(member)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            waiting += link.exceptions


def _text(error: BaseException) -> str:
    told = clean_text(str(error)) or type(error).__name__
    return told[:MESSAGE_MAX_CHARS]
