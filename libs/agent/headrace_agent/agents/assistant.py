"""Agent `assistant`: a model that may use tools until it has its answer."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode

from headrace_agent.chat_model import ChatModel
from headrace_agent.tools import calculate, current_time

SYSTEM_PROMPT = (
    "You are a helpful assistant. Answer briefly and in the user's language. "
    "Use the tools for arithmetic and for the current time; do not guess these."
)


def make_graph() -> CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]:
    """Build the graph; the model is what the environment names when this is called."""
    tools: list[BaseTool] = [current_time, calculate]
    model = ChatModel().bind_tools(tools)

    async def call_model(state: MessagesState) -> dict[str, Any]:
        answer = await model.ainvoke([SystemMessage(SYSTEM_PROMPT), *state["messages"]])
        return {"messages": [answer]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", wants_tools, {"tools": "tools", "done": END})
    graph.add_edge("tools", "model")
    return graph.compile()


def wants_tools(state: MessagesState) -> Literal["tools", "done"]:
    """Say where to go after the model has spoken."""
    last = state["messages"][-1]
    return "tools" if isinstance(last, AIMessage) and last.tool_calls else "done"
