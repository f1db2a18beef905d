"""LangChain's OpenAI chat model."""

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

import checks


def model(**change) -> ChatOpenAI:
    options = {"model": checks.MODEL, "base_url": checks.BASE_URL, "api_key": checks.API_KEY, "max_retries": 0,
               "max_tokens": 60, "temperature": 0, "timeout": 240}
    return ChatOpenAI(**(options | change))


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


class City(BaseModel):
    """A city."""

    name: str
    population: int


MESSAGES = [SystemMessage("Be brief."), HumanMessage("Say hello.")]


def invoke() -> None:
    answer = model().invoke(MESSAGES)
    assert answer.content and answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


def stream() -> None:
    whole = model().invoke(MESSAGES).content
    assert "".join(chunk.content for chunk in model(stream_usage=True).stream(MESSAGES)) == whole


def batch() -> None:
    assert all(answer.content for answer in model(max_tokens=4).batch([MESSAGES, MESSAGES]))


def tool_calls() -> None:
    answer = model().bind_tools([get_weather], tool_choice="get_weather").invoke("The weather in Rome?")
    assert answer.tool_calls[0]["name"] == "get_weather" and "city" in answer.tool_calls[0]["args"], answer


def tool_results() -> None:
    call = {"name": "get_weather", "args": {"city": "Rome"}, "id": "call_1"}
    messages = [HumanMessage("The weather in Rome?"), AIMessage("", tool_calls=[call]), ToolMessage("Sunny.", tool_call_id="call_1")]
    assert model().bind_tools([get_weather]).invoke(messages).usage_metadata


def structured_output() -> None:
    structured = model(max_tokens=100).with_structured_output(City, method="json_schema")
    assert isinstance(structured.invoke("A city."), City)


def logprobs() -> None:
    answer = model(max_tokens=3).bind(logprobs=True, top_logprobs=2).invoke(MESSAGES)
    assert len(answer.response_metadata["logprobs"]["content"]) == 3


checks.run("langchain", {name: globals()[name] for name in (
    "invoke", "stream", "batch", "tool_calls", "tool_results", "structured_output", "logprobs",
)})
