"""Agent `echo`: says back what the user said, word by word and without a model. For trying things out and for tests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from uuid_utils import uuid7

from headrace_agent.sink import current_sink


async def echo(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    """Answer with the last message's text."""
    text = state["messages"][-1].text if state["messages"] else ""
    message = AIMessage(content=text, id=f"msg_{uuid7().hex}")
    if (run_sink := current_sink.get()) is not None:
        sink = run_sink.open_message(str(message.id), _place(config.get("metadata") or {}))
        for word in re.findall(r"\s*\S+\s*$|\s*\S+", text):
            sink.text(word)
            # Other runs get their turn between two words; a cancelled run stops here.
            await asyncio.sleep(0)
        sink.close(message)
    return {"messages": [message]}


def _place(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: metadata[name] for name in ("langgraph_node", "langgraph_checkpoint_ns") if name in metadata}


def make_graph() -> CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]:
    """Build the graph."""
    graph = StateGraph(MessagesState)
    graph.add_node("echo", echo)
    graph.add_edge(START, "echo")
    graph.add_edge("echo", END)
    return graph.compile()
