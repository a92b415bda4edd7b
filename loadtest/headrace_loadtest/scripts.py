"""What the scripted model says: scripts as data, how a request chooses one, and the time it ideally takes.

A script comes from the model's name (`scripted:tokens=200,first=0.3,rate=50`) and from a line `#script {...}` in the
last user message, which wins field by field. Invariant: the same messages always give the same text and tool calls.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

DIRECTIVE = "#script "
"""Begins the line of a user message that holds a script as JSON."""
DEFAULT_FIRST_S = 0.1
"""Seconds to the first token where nothing is asked for: short, and still visible as a wait."""
DEFAULT_RATE = 60.0
"""Tokens per second where nothing is asked for: as quick as a good provider."""
ARGUMENT_FRAGMENT = 6
"""Characters of a tool call's arguments per chunk: small enough that clients must join fragments."""


class ScriptError(ValueError):
    """The model's name or the directive is not a script; the message says what is wrong with it."""


class ScriptedCall(BaseModel):
    """A tool call that the model makes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    args: dict[str, Any] = {}
    raw_args: str | None = None
    """Sent as the arguments instead of `args`, to send JSON that does not parse."""


class Script(BaseModel):
    """One turn of the model, and by `then` the next ones. With nothing to say it answers by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str | None = None
    tokens: int | None = Field(default=None, ge=1, le=100_000)
    """Answer `tok0 tok1 ...` of so many tokens."""
    reasoning: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    then: Script | None = None
    """The turn after the tool results."""
    first_s: float | None = Field(default=None, ge=0, le=3600)
    """Seconds from the request to its first token."""
    rate: float | None = Field(default=None, ge=0, le=100_000)
    """Tokens per second; 0 sends all at once."""
    finish: str | None = None
    """finish_reason instead of stop or tool_calls."""
    nul: bool = False
    """Ends the text with a NUL character."""
    surrogate: bool = False
    """Ends the text with half of a surrogate pair, as an escape."""
    split_bytes: int | None = Field(default=None, ge=1)
    """Sends the stream in pieces of so many bytes, which cuts characters and events apart."""
    status: int | None = Field(default=None, ge=400, le=599)
    """Answers with this error."""
    retry_after: float | None = Field(default=None, ge=0)
    """Seconds, as the error's Retry-After header."""
    times: int | None = Field(default=None, ge=1)
    """Only the first so many requests with these messages fail; without it all do."""
    stall: bool = False
    """Takes the request and never answers."""
    stall_after: int | None = Field(default=None, ge=0)
    """Falls silent after so many tokens."""
    disconnect_after: int | None = Field(default=None, ge=0)
    """Resets the connection after so many tokens."""
    close_after: int | None = Field(default=None, ge=0)
    """Closes the connection cleanly, in the middle of the body, after so many tokens."""
    error_after: int | None = Field(default=None, ge=0)
    """Sends an error object inside the stream after so many tokens."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer, ready to be sent."""

    script: Script
    deltas: tuple[bytes, ...]
    """JSON of each chunk's `delta`; one is one token."""
    text: str
    reasoning: str
    tool_calls: tuple[Mapping[str, Any], ...]
    """Whole calls in OpenAI's shape."""
    first_s: float
    rate: float
    reasoning_tokens: int

    @property
    def finish_reason(self) -> str:
        """How the answer ends."""
        return self.script.finish or ("tool_calls" if self.tool_calls else "stop")

    @property
    def ideal_seconds(self) -> float:
        """Seconds from the request to the end of the answer; the end follows the last token by one interval."""
        return self.first_s + (len(self.deltas) / self.rate if self.rate else 0.0)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request's messages hold that a script depends on."""

    user_text: str
    """The last user message without its directive."""
    directive: Script | None
    tool_results: tuple[str, ...]
    """Since the last user message, oldest first."""
    turn: int
    """Answers with tool calls since the last user message."""
    digest: str
    """Names these very messages."""


def from_model_name(model: str) -> Script:
    """Read the script in a model's name: `anything` or `anything:key=value,...` with keys tokens, first and rate.

    Raises ScriptError for an unknown key or a value that is no number.
    """
    _, _, options = model.partition(":")
    names = {"tokens": "tokens", "first": "first_s", "rate": "rate"}
    fields: dict[str, str] = {}
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        if key not in names:
            raise ScriptError(f"model name: {key!r} is none of {', '.join(names)}")
        fields[names[key]] = value
    return _validated(fields, "model name")


def read_conversation(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """Find the last user message, its directive, and what tools answered since.

    Raises ScriptError for a directive that is not a script.
    """
    last_user = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    lines = _text(messages[last_user].get("content")).split("\n") if last_user >= 0 else []
    directives = [line.strip()[len(DIRECTIVE) :] for line in lines if line.strip().startswith(DIRECTIVE)]
    directive = None
    if directives:
        try:
            fields = json.loads(directives[-1])
        except ValueError as error:
            raise ScriptError(f"{DIRECTIVE.strip()}: not JSON: {error}") from None
        directive = _validated(fields, DIRECTIVE.strip())
    since = messages[last_user + 1 :]
    return Conversation(
        user_text="\n".join(line for line in lines if not line.strip().startswith(DIRECTIVE)).strip(),
        directive=directive,
        tool_results=tuple(_text(m.get("content")) for m in since if m.get("role") == "tool"),
        turn=sum(1 for m in since if m.get("role") == "assistant" and m.get("tool_calls")),
        digest=hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest(),
    )


def choose(model: str, conversation: Conversation, tools: Sequence[str] = ()) -> Turn:
    """Return the model's next answer.

    Raises ScriptError as `from_model_name` does.
    """
    script = from_model_name(model)
    if conversation.directive is not None:
        script = _merged(script, conversation.directive)
    asked = conversation.directive is not None or "tokens" in script.model_fields_set
    first_s = script.first_s if script.first_s is not None else (0.0 if asked else DEFAULT_FIRST_S)
    rate = script.rate if script.rate is not None else (0.0 if asked else DEFAULT_RATE)
    for _ in range(conversation.turn if script.tool_calls else 0):
        script = script.then or Script()
    if script.text is None and script.tokens is None and not script.tool_calls:
        script = script.model_copy(update=_by_itself(conversation, tools))
    return build(
        script,
        first_s=script.first_s if script.first_s is not None else first_s,
        rate=script.rate if script.rate is not None else rate,
        digest=conversation.digest,
    )


def build(script: Script, *, first_s: float, rate: float, digest: str = "") -> Turn:
    """Return one turn of a script as chunks; `digest` makes its tool call ids unique to the conversation."""
    text = script.text if script.text is not None else token_text(script.tokens or 0)
    text += "\0" * script.nul + "\ud800" * script.surrogate
    plain = script.text is None and not (script.nul or script.surrogate)
    content = token_deltas(script.tokens or 0) if plain else tuple(_delta("content", piece) for piece in pieces(text))
    reasoning = tuple(_delta("reasoning_content", piece) for piece in pieces(script.reasoning))
    calls = tuple(_whole_call(call, index, digest) for index, call in enumerate(script.tool_calls))
    fragments = tuple(delta for index, call in enumerate(calls) for delta in _call_deltas(call, index))
    return Turn(
        script=script,
        deltas=reasoning + content + fragments,
        text=text,
        reasoning=script.reasoning,
        tool_calls=calls,
        first_s=first_s,
        rate=rate,
        reasoning_tokens=len(reasoning),
    )


def ideal_seconds(script: Script) -> float:
    """Return the seconds that all turns of a fault-free script take at its own pace, tools taking none."""
    turn = build(script, first_s=script.first_s or 0.0, rate=script.rate or 0.0)
    rest = script.then
    if rest is None:
        return turn.ideal_seconds
    inherited = {"first_s": rest.first_s if rest.first_s is not None else script.first_s}
    inherited["rate"] = rest.rate if rest.rate is not None else script.rate
    return turn.ideal_seconds + ideal_seconds(rest.model_copy(update=inherited))


def pieces(text: str) -> list[str]:
    """Cut a text into tokens: words with the space before them; joined they are the text."""
    return re.findall(r"\s*\S+|\s+$", text)


def token_text(count: int) -> str:
    """Return the exact answer of a script with `tokens`."""
    return " ".join(f"tok{i}" for i in range(count))


@cache
def token_deltas(count: int) -> tuple[bytes, ...]:
    """Return the chunks of `token_text`; kept, since a load run asks for the same count thousands of times."""
    return tuple(_delta("content", piece) for piece in pieces(token_text(count)))


def _validated(fields: Any, where: str) -> Script:
    try:
        return Script.model_validate(fields)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ScriptError(f"{where}: {told}") from None


def _merged(base: Script, directive: Script) -> Script:
    """Let the directive win field by field; content of its own replaces all of the base's."""
    said = directive.model_fields_set
    content = {"text", "tokens", "tool_calls"}
    cleared = {"text": None, "tokens": None, "tool_calls": ()} if said & content else {}
    return base.model_copy(update={**cleared, **{name: getattr(directive, name) for name in said}})


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(str(block.get("text", "")) for block in blocks if isinstance(block, dict))


def _delta(field: str, piece: str) -> bytes:
    return b'{"%b":%b}' % (field.encode(), _json(piece))


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a surrogate pair exists only as an escape
        return json.dumps(value, separators=(",", ":")).encode()


def _whole_call(call: ScriptedCall, index: int, digest: str) -> Mapping[str, Any]:
    name = hashlib.sha256(f"{digest}/{index}".encode()).hexdigest()[:24]
    arguments = call.raw_args if call.raw_args is not None else json.dumps(call.args)
    return {"id": f"call_{name}", "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _call_deltas(call: Mapping[str, Any], index: int) -> list[bytes]:
    function = call["function"]
    head = {
        "index": index,
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": ""},
    }
    rest = [
        {"index": index, "function": {"arguments": function["arguments"][at : at + ARGUMENT_FRAGMENT]}}
        for at in range(0, len(function["arguments"]), ARGUMENT_FRAGMENT)
    ]
    return [b'{"tool_calls":[%b]}' % _json(part) for part in (head, *rest)]


def _by_itself(conversation: Conversation, tools: Sequence[str]) -> Mapping[str, Any]:
    """Behave like a small assistant: calculate what can be calculated, else answer politely."""
    said = conversation.user_text
    expression = find_expression(said)
    if conversation.tool_results:
        result = conversation.tool_results[-1].strip()
        exact = f"{expression} = {result}. The calculator says so, and it is never wrong about numbers."
        return {"text": exact if expression else f"The tool answered: {result}"}
    if expression and "calculate" in tools:
        return {
            "reasoning": f"The user wants {expression}. I could guess, but a calculator knows it exactly.",
            "tool_calls": (ScriptedCall(name="calculate", args={"expression": expression}),),
        }
    return {
        "text": f"Hello! You wrote {len(said.split())} words, and I read them all. I am a scripted model: "
        "set HEADRACE_MODEL_BASE_URL to talk to a real one."
    }


def find_expression(text: str) -> str | None:
    """Return the longest arithmetic expression in a text, in Python's notation, or None."""
    plain = text.replace("×", "*").replace("÷", "/").replace("^", "**").replace("−", "-")
    found = re.findall(r"[(\s]*-?[\d.]+(?:[\s)]*(?:\*\*|[-+*/%])[\s(]*-?[\d.]+)+[\s)]*", plain)
    trimmed = [part.strip(" \n\t") if part.count("(") == part.count(")") else part.strip(" \n\t()") for part in found]
    whole = [part.rstrip(".") for part in trimmed if part.count("(") == part.count(")")]
    return max(whole, key=len, default=None)
