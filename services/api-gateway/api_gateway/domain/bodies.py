"""Bodies of requests: strict types, no unknown fields, and errors that name the field.

What a value means (which agents exist, which modes, NUL in a text) is run-worker's to judge; here are the shapes only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import orjson
from headrace_kit.errors import InvalidArgument
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from api_gateway.domain.wording import plain_words

JsonObject = dict[str, Any]
Scope = Literal["read", "write", "admin"]

MAX_KEY_SECONDS = 10 * 366 * 86_400
"""The longest life of a key that expires, ten years: beyond it the caller means none."""


def _storable(text: str) -> str:
    if "\x00" in text:
        raise PydanticCustomError("nul", "must not hold a NUL character")
    return text


# Texts that the gateway stores itself: PostgreSQL has no NUL.
Label = Annotated[str, Field(max_length=200), AfterValidator(_storable)]
User = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_storable)]


class Body(BaseModel):
    """What all bodies are: strict, closed, and silent about the values in errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class CreateThread(Body):
    """POST /v1/threads."""

    agent: str = Field(default="assistant", min_length=1, max_length=200)
    title: str | None = Field(default=None, max_length=200)
    metadata: JsonObject | None = None
    thread_id: str | None = None


class UpdateThread(Body):
    """PATCH /v1/threads/{thread_id}: what is absent or null stays."""

    title: str | None = Field(default=None, max_length=200)
    metadata: JsonObject | None = None


class SubmitRequest(Body):
    """POST /v1/threads/{thread_id}/requests. `message` is short for one user message in `input`, and not blank."""

    input: Any = None
    message: str | None = Field(default=None, pattern=r"\S")
    multitask_strategy: Literal["enqueue", "reject", "interrupt", "rollback"] | None = None
    config: JsonObject | None = None
    context: JsonObject | None = None
    stream_modes: list[str] = Field(default_factory=list)
    stream_subgraphs: bool = False
    durability: Literal["async", "sync", "exit"] | None = None
    metadata: JsonObject | None = None

    @model_validator(mode="after")
    def _one_input(self) -> SubmitRequest:
        if (self.input is None) == (self.message is None):
            raise PydanticCustomError("one_input", "send exactly one of input and message, and not null")
        return self

    def graph_input(self) -> Any:
        """Return what the graph gets."""
        if self.message is not None:
            return {"messages": [{"role": "user", "content": self.message}]}
        return self.input


class CreateKey(Body):
    """POST /v1/keys."""

    label: Label = ""
    uid: User | None = None
    scopes: tuple[Scope, ...] = Field(default=("read", "write"), min_length=1, strict=False)
    expires_in_seconds: int | None = Field(default=None, ge=1, le=MAX_KEY_SECONDS)


B = TypeVar("B", bound=Body)


def parse(model: type[B], raw: bytes) -> B:
    """Read a body; an empty one is an empty object.

    Raises InvalidArgument when it is not JSON (lone surrogates and NaN are not), not an object, or has a wrong or an
    unknown field, which it names.
    """
    try:
        value = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"the body is not JSON: {error}", reason="BODY_NOT_JSON") from None
    if not isinstance(value, dict):
        raise InvalidArgument("the body is not a JSON object", reason="BODY_NOT_AN_OBJECT")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # A rule about the whole body is told at `message`, the field that most callers mean.
        field = ".".join(str(part) for part in first["loc"])[:200] or "message"
        told = plain_words(first, known=list(model.model_fields))
        raise InvalidArgument(f"{field}: {told}", reason="BODY_INVALID", field=field) from None
