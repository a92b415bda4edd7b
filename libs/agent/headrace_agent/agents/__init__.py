"""The agents that Headrace brings along; `headrace_agent/langgraph.json` names them."""
