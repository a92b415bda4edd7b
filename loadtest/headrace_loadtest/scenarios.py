"""What a virtual user asks for, what exactly must come back, and how long the model itself takes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace_loadtest.scripts import DIRECTIVE, Script, ScriptedCall, ideal_seconds, token_text

AGENT = "assistant"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of run."""

    name: str
    script: Script
    answer: str
    """The exact text of the output message."""
    tokens: int
    """Chunks of the model over all turns, for costs per token."""

    @property
    def first_s(self) -> float:
        """The model's stated time to its first token."""
        return self.script.first_s or 0.0

    @property
    def ideal_s(self) -> float:
        """The model's stated time for the whole run; a platform that costs nothing would take as long."""
        return ideal_seconds(self.script)

    def message(self, user: int, round_number: int) -> str:
        """Return a user's message; it differs from every other one."""
        script = self.script.model_dump_json(exclude_unset=True)
        return f"Load run, user {user}, round {round_number}.\n{DIRECTIVE}{script}"


TEXT_TOKENS = 200
"""Tokens of the text scenario: with the pace below the ladder's stated 4.3 s."""
FIRST_S = 0.3
RATE = 50.0


def text(tokens: int = TEXT_TOKENS) -> Scenario:
    """200 tokens, the first after 0.3 s, 50 a second: ideally 4.3 s."""
    script = Script(tokens=tokens, first_s=FIRST_S, rate=RATE)
    return Scenario("text", script, token_text(tokens), tokens)


def tools() -> Scenario:
    """Three turns that call a tool and one that answers."""
    answer = token_text(40)
    script = Script(tokens=40)
    tokens = 40
    for n in (3, 2, 1):
        call = ScriptedCall(name="calculate", args={"expression": f"{n} * 7"})
        script = Script(tool_calls=(call,), then=script)
        tokens += 1 + -(-len('{"expression": "1 * 7"}') // 6)
    paced = script.model_copy(update={"first_s": FIRST_S, "rate": RATE})
    return Scenario("tools", Script.model_validate(paced.model_dump(exclude_unset=True)), answer, tokens)


SCENARIOS: Mapping[str, Callable[[], Scenario]] = {"text": text, "tools": tools}
