"""Small graphs without a model: what they wait for is an event of the test, not time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from headrace_agent.sink import current_sink
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph


def echo() -> Any:
    """Answer with the user's text, word by word."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        text = str(state["messages"][-1].content)
        sink = current_sink.get()
        message_id = f"echo-{len(state['messages'])}-{state['messages'][-1].id}"
        message = AIMessage(text, id=message_id)
        if sink is not None:
            opened = sink.open_message(message_id, {"langgraph_node": "answer", "langgraph_checkpoint_ns": "answer:1"})
            for word in text.split(" "):
                opened.text(word + " ")
            opened.close(message)
        return {"messages": [message]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


@dataclass
class Talker:
    """A model that says what the test lets it say."""

    said: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0
    cancelled: bool = False

    def graph(self, text: str = "partial text") -> Any:
        async def talk(state: MessagesState) -> dict[str, Any]:
            self.calls += 1
            sink = current_sink.get()
            assert sink is not None
            message_id = f"talk-{self.calls}"
            opened = sink.open_message(message_id, {"langgraph_node": "talk", "langgraph_checkpoint_ns": "talk:1"})
            opened.text(text)
            self.said.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            opened.text(" and the rest")
            message = AIMessage(f"{text} and the rest", id=message_id)
            opened.close(message)
            return {"messages": [message]}

        graph = StateGraph(MessagesState)
        graph.add_node("talk", talk)
        graph.add_edge(START, "talk")
        graph.add_edge("talk", END)
        return graph.compile()
