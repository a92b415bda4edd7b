"""What a client may submit, checked before anything is stored.

Invariant: text with NUL or lone surrogates never gets past here, because PostgreSQL and browsers refuse it later; the
error names the field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

STREAM_MODES: Final = frozenset({"updates", "values", "custom", "tasks", "messages"})
DEFAULT_STREAM_MODES: Final = ("updates", "custom")
DURABILITIES: Final = frozenset({"", "async", "sync", "exit"})
CONFIG_FIELDS: Final = frozenset({"configurable", "tags", "recursion_limit"})
IDENTITY_FIELDS: Final = frozenset({"thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map", "run_id"})
"""In `config.configurable` these decide whose thread and checkpoint a graph writes: the platform's, not a client's."""

MAX_RECURSION_LIMIT: Final = 10_000
"""Steps; LangGraph's own default is 25 and a run has a time limit besides."""
MAX_MESSAGE_ID: Final = 200
"""Characters of a client's own message id; an index key."""
MAX_KEY: Final = 255
"""Characters of an idempotency key; an index key."""
MAX_TITLE: Final = 200
"""Characters of a thread's title."""

_USER_ROLES: Final = frozenset({"user", "human"})
_USER_PAIRS: Final = tuple([role] for role in sorted(_USER_ROLES))


class InputError(ValueError):
    """A field of the call is wrong. `field` is its path, as `input.messages[0].content`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message of the user, as the transcript stores it."""

    message_id: str
    content: Any
    name: str


@dataclass(frozen=True, slots=True)
class Body:
    """The JSON fields of a submission, as their callers sent them; empty bytes are absent."""

    input: bytes
    config: bytes
    context: bytes
    metadata: bytes
    stream_modes: Sequence[str]
    stream_subgraphs: bool
    durability: str
    multitask_strategy: str


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked submission: JSON texts for PostgreSQL, and the user's messages with the ids that they keep."""

    input: str
    messages: tuple[UserMessage, ...]
    config: str
    context: str | None
    metadata: str
    stream_modes: tuple[str, ...]
    stream_subgraphs: bool
    durability: str
    multitask_strategy: str
    body_sha256: bytes


def check_text(text: str, *, field: str, limit: int) -> str:
    """Return `text` if PostgreSQL can hold it and it is not longer than `limit` characters."""
    if len(text) > limit:
        raise InputError(field, f"has {len(text)} characters, the limit is {limit}")
    if "\x00" in text:
        raise InputError(field, "holds a NUL character")
    return text


def parse_json_object(raw: bytes, *, field: str) -> dict[str, Any]:
    """Return the JSON object in `raw`; empty bytes are {}.

    Raises InputError that names the place of what is refused.
    """
    value = _parse(raw, field=field) if raw else {}
    if not isinstance(value, dict):
        raise InputError(field, f"must be a JSON object, not {_kind(value)}")
    return value


def json_object_text(raw: bytes, *, field: str) -> str:
    """Return the JSON object in `raw` as text for PostgreSQL."""
    return _encode(parse_json_object(raw, field=field), field=field)


def body_digest(parts: Mapping[str, Any]) -> bytes:
    """Return a sha256 of a call's body that does not depend on the order of keys."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(_encode([name, parts[name]], field=name, option=orjson.OPT_SORT_KEYS).encode())
    return digest.digest()


def check_submission(body: Body, *, thread_id: str, mint_id: Callable[[], str]) -> Submission:
    """Check a whole submission; user messages without an id get one from `mint_id`.

    Raises InputError at the first field that is wrong.
    """
    if not body.input:
        raise InputError("input", "is required")
    given = parse_json_object(body.input, field="input")
    config = _config(body.config)
    context = parse_json_object(body.context, field="context") if body.context else None
    metadata = parse_json_object(body.metadata, field="metadata")
    modes = _stream_modes(body.stream_modes)
    if body.durability not in DURABILITIES:
        raise InputError("durability", f"{body.durability[:32]!r} is none of async, sync, exit")
    digest = body_digest(
        {
            "thread_id": thread_id,
            "input": given,
            "config": config,
            "context": context,
            "metadata": metadata,
            "stream_modes": sorted(modes),
            "stream_subgraphs": body.stream_subgraphs,
            "durability": body.durability,
            "multitask_strategy": body.multitask_strategy,
        }
    )
    messages = tuple(_user_messages(given, mint_id))
    ids = [message.message_id for message in messages]
    if len(set(ids)) != len(ids):
        raise InputError("input.messages", "two messages have the same id")
    return Submission(
        input=_encode(given, field="input"),
        messages=messages,
        config=_encode(config, field="config"),
        context=None if context is None else _encode(context, field="context"),
        metadata=_encode(metadata, field="metadata"),
        stream_modes=modes,
        stream_subgraphs=body.stream_subgraphs,
        durability=body.durability,
        multitask_strategy=body.multitask_strategy,
        body_sha256=digest,
    )


def _parse(raw: bytes, *, field: str) -> Any:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        # Lone surrogates and invalid UTF-8 end here too: orjson takes neither.
        raise InputError(field, f"is not valid JSON ({error})") from None
    if b"\\u0000" in raw:
        place = _find_nul(value, field)
        if place is not None:
            raise InputError(place, "holds a NUL character")
    return value


def _encode(value: Any, *, field: str, option: int = 0) -> str:
    try:
        return orjson.dumps(value, option=option).decode()
    except orjson.JSONEncodeError:
        # The parser takes deeper nesting than the encoder: 254 levels.
        raise InputError(field, "is nested too deeply") from None


def _find_nul(root: Any, path: str) -> str | None:
    # A stack of its own: client data may nest as deep as the parser allows.
    pending: list[tuple[str, Any]] = [(path, root)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, str) and "\x00" in value:
            return place
        if isinstance(value, dict):
            if any("\x00" in key for key in value):
                return f"{place} (a key)"
            pending.extend((f"{place}.{key}", item) for key, item in value.items())
        elif isinstance(value, list):
            pending.extend((f"{place}[{index}]", item) for index, item in enumerate(value))
    return None


def _config(raw: bytes) -> dict[str, Any]:
    config = parse_json_object(raw, field="config")
    for key in config.keys() - CONFIG_FIELDS:
        raise InputError(f"config.{key[:64]}", "is not one of configurable, tags, recursion_limit")
    configurable = config.get("configurable", {})
    if not isinstance(configurable, dict):
        raise InputError("config.configurable", f"must be a JSON object, not {_kind(configurable)}")
    for key in configurable:
        if key in IDENTITY_FIELDS or key.startswith("__"):
            raise InputError(f"config.configurable.{key[:64]}", "is set by the platform and may not be given")
    tags = config.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise InputError("config.tags", "must be an array of strings")
    limit = config.get("recursion_limit", 1)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_RECURSION_LIMIT:
        raise InputError("config.recursion_limit", f"must be an integer from 1 to {MAX_RECURSION_LIMIT}")
    return config


def _stream_modes(given: Sequence[str]) -> tuple[str, ...]:
    for mode in given:
        if mode not in STREAM_MODES:
            raise InputError("stream_modes", f"{mode[:32]!r} is none of {', '.join(sorted(STREAM_MODES))}")
    return tuple(dict.fromkeys(given)) or DEFAULT_STREAM_MODES


def _user_messages(given: dict[str, Any], mint_id: Callable[[], str]) -> Iterator[UserMessage]:
    """Yield the user's messages; each id is written into `given` too, so that graph and transcript agree."""
    found = given.get("messages")
    alone = isinstance(found, dict)
    for index, message in enumerate([found] if alone else found if isinstance(found, list) else ()):
        place = "input.messages" if alone else f"input.messages[{index}]"
        if not isinstance(message, dict):
            # LangChain's short forms, a text or [role, text], go to the graph as they are.
            if message == "" or (isinstance(message, list) and message[:1] in _USER_PAIRS and _empty(message[-1])):
                raise InputError(place, "is empty")
            continue
        if (message.get("role") or message.get("type")) not in _USER_ROLES:
            continue
        content = message.get("content")
        if not isinstance(content, str | list):
            raise InputError(
                f"{place}.content", f"must be a string or an array of content blocks, not {_kind(content)}"
            )
        if _empty(content):
            raise InputError(f"{place}.content", "is empty")
        message_id = message.get("id") or mint_id()
        if not isinstance(message_id, str) or len(message_id) > MAX_MESSAGE_ID:
            raise InputError(f"{place}.id", f"must be a string of at most {MAX_MESSAGE_ID} characters")
        name = message.get("name") or ""
        if not isinstance(name, str):
            raise InputError(f"{place}.name", "must be a string")
        message["id"] = message_id
        yield UserMessage(message_id, content, name)


def _empty(content: Any) -> bool:
    """Say whether a message's content is nothing: no text, no block, or text blocks without text only."""
    if isinstance(content, list):
        return all(
            isinstance(block, dict) and block.get("type") == "text" and not block.get("text") for block in content
        )
    return isinstance(content, str) and not content


def _kind(value: Any) -> str:
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)
