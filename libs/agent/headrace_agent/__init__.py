"""What graph authors import: a chat model for any OpenAI-compatible provider, and the errors it raises."""

from headrace_agent.chat_model import ChatModel
from headrace_agent.errors import ModelError, ModelRefused, ModelTimeout, ModelUnavailable
from headrace_agent.sessions import close_session

__all__ = ["ChatModel", "ModelError", "ModelRefused", "ModelTimeout", "ModelUnavailable", "close_session"]
