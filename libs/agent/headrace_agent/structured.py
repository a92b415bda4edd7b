"""Answers of a given shape: a JSON schema that the provider enforces, or one tool that the model must call."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.base import OutputParserLike
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import BaseModel

Method = Literal["json_schema", "function_calling", "json_mode"]


def structured(
    model: BaseChatModel, schema: dict[str, Any] | type, *, method: Method, strict: bool | None, include_raw: bool
) -> Runnable[LanguageModelInput, Any]:
    """Return a runnable that asks `model` for `schema` and parses the answer.

    A pydantic class gives instances, a dict or TypedDict gives dicts. With `include_raw` the result is
    `{"raw": AIMessage, "parsed": ..., "parsing_error": ...}` and a bad answer is no exception.
    """
    pydantic_class = schema if isinstance(schema, type) and issubclass(schema, BaseModel) else None
    parser: OutputParserLike[Any]
    llm: Runnable[LanguageModelInput, Any]
    if method == "function_calling":
        tool = convert_to_openai_tool(schema, strict=strict)
        name = tool["function"]["name"]
        llm = model.bind_tools([tool], tool_choice=name, parallel_tool_calls=False)
        if pydantic_class:
            parser = PydanticToolsParser(tools=[pydantic_class], first_tool_only=True)
        else:
            parser = JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
    elif method in ("json_schema", "json_mode"):
        llm = model.bind(response_format=_response_format(schema, method=method, strict=strict))
        parser = PydanticOutputParser(pydantic_object=pydantic_class) if pydantic_class else JsonOutputParser()
    else:
        raise ValueError(f"method {method!r} is none of 'json_schema', 'function_calling' and 'json_mode'")
    if not include_raw:
        return llm | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    unparsed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=llm) | parsed.with_fallbacks([unparsed], exception_key="parsing_error")


def _response_format(schema: dict[str, Any] | type, *, method: Method, strict: bool | None) -> dict[str, Any]:
    if method == "json_mode":
        return {"type": "json_object"}
    json_schema = convert_to_json_schema(schema, strict=strict)
    name = str(json_schema.pop("title", "answer"))
    described: dict[str, Any] = {"name": name, "schema": json_schema}
    if strict is not None:
        described["strict"] = strict
    return {"type": "json_schema", "json_schema": described}
