"""The official `openai` client for Python: every answer and stream chunk validates against its own models, strictly."""

import json
from typing import Any

import httpx
import openai
from openai import OpenAI
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

import checks

MODEL = checks.MODEL
client = OpenAI(base_url=checks.BASE_URL, api_key=checks.API_KEY, max_retries=0, timeout=240)
http = httpx.Client(
    base_url=checks.BASE_URL, headers={"Authorization": f"Bearer {checks.API_KEY}"}, timeout=240
)
HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def no_extras(value: Any, path: str = "") -> None:
    """OpenAI's models keep what they do not know; a conforming answer has nothing of that kind."""
    if isinstance(value, BaseModel):
        assert not value.model_extra, f"{path}: {value.model_extra}"
        for name in type(value).model_fields:
            no_extras(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for at, element in enumerate(value):
            no_extras(element, f"{path}[{at}]")


def strictly(model: type[BaseModel], text: str, allowed: tuple[str, ...] = ()) -> Any:
    body = json.loads(text)
    for name in allowed:
        body.pop(name)
    answer = model.model_validate_json(json.dumps(body), strict=True)
    no_extras(answer)
    return answer


def whole(body: dict, model: type[BaseModel] = ChatCompletion, path: str = "/chat/completions") -> Any:
    response = http.post(path, json={"model": MODEL} | body)
    assert response.status_code == 200, response.text
    return strictly(model, response.text)


def streamed(body: dict, model: type[BaseModel] = ChatCompletionChunk, path: str = "/chat/completions") -> list:
    chunks = []
    with http.stream("POST", path, json={"model": MODEL, "stream": True} | body) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines), lines
    assert lines[-1] == "data: [DONE]", lines[-1]
    for line in lines[:-1]:
        chunk = line.removeprefix("data: ")
        if model is Completion:
            # OpenAI sends null before the end; its client's type, which is the whole answer's, leaves that out.
            chunk = chunk.replace('"finish_reason":null', '"finish_reason":"stop"')
        chunks.append(strictly(model, chunk))
    return chunks


def text_of(chunks: list, index: int = 0) -> str:
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(delta.content or "" for delta in deltas)


def chat() -> None:
    answer = whole({"messages": HELLO, "max_tokens": 12, "temperature": 0})
    assert answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def chat_stream_says_the_same() -> None:
    for cut in (1, 3, 7, 12):
        body = {"messages": HELLO, "max_tokens": cut, "temperature": 0}
        chunks = streamed(body | {"stream_options": {"include_usage": True}})
        answer = whole(body)
        assert text_of(chunks) == answer.choices[0].message.content
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
        assert chunks[-2].choices[0].finish_reason == answer.choices[0].finish_reason
        assert chunks[0].choices[0].delta.role == "assistant"


def roles_and_parts() -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts, "name": "ann"}]
    whole({"messages": messages, "max_completion_tokens": 4})
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    refused(openai.BadRequestError, messages=[{"role": "user", "content": image}])


def choices() -> None:
    body = {"messages": HELLO, "max_tokens": 6, "n": 3, "temperature": 1, "seed": 7}
    answer = whole(body)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    chunks = streamed(body)
    for choice in answer.choices:
        assert text_of(chunks, choice.index) == choice.message.content


def stop_strings() -> None:
    answer = whole({"messages": HELLO, "max_tokens": 20, "temperature": 0})
    word = answer.choices[0].message.content.split()[1]
    body = {"messages": HELLO, "max_tokens": 20, "temperature": 0, "stop": [word, "never"]}
    stopped = whole(body)
    assert stopped.choices[0].message.content == answer.choices[0].message.content.split(word)[0]
    assert stopped.choices[0].finish_reason == "stop"
    assert text_of(streamed(body)) == stopped.choices[0].message.content


def logprobs() -> None:
    body = {"messages": HELLO, "max_tokens": 5, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    content = whole(body).choices[0].logprobs.content
    assert len(content) == 5 and all(len(token.top_logprobs) == 3 for token in content)
    assert "".join(token.token for token in content) == whole(body).choices[0].message.content
    told = [choice.logprobs for chunk in streamed(body) for choice in chunk.choices if choice.logprobs]
    assert [token.token for part in told for token in part.content] == [token.token for token in content]


def sampling_parameters() -> None:
    body = {"messages": HELLO, "max_tokens": 8, "seed": 3, "temperature": 1.2, "top_p": 0.9}
    assert whole(body).choices[0].message.content == whole(body).choices[0].message.content
    whole(body | {"presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"50": -100}})
    whole(body | {"user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "store": False})


def tools_whole() -> None:
    body = {"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": [WEATHER],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "max_tokens": 80, "temperature": 0}
    choice = whole(body).choices[0]
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.function.name == "get_weather", call
    assert set(json.loads(call.function.arguments)) == {"city"}, call
    assert choice.finish_reason in ("tool_calls", "stop"), choice


def tools_streamed() -> None:
    body = {"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": [WEATHER],
            "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 80, "temperature": 0}
    deltas = [choice.delta for chunk in streamed(body) for choice in chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert [call.function.name for call in calls if call.function.name] == ["get_weather"], calls
    assert calls[0].id and calls[0].type == "function" and not any(call.id for call in calls[1:]), calls
    arguments = "".join(call.function.arguments or "" for call in calls)
    assert set(json.loads(arguments)) == {"city"}, arguments


def tool_results() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}
    messages = [
        {"role": "user", "content": "What is the weather in Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 20 degrees."},
    ]
    whole({"messages": messages, "tools": [WEATHER], "max_tokens": 12})


class City(BaseModel):
    name: str
    population: int


def json_schema() -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "A city as JSON."}], response_format=City, max_tokens=100,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, City), answer


def json_object() -> None:
    body = {"messages": [{"role": "user", "content": "A city as JSON."}], "response_format": {"type": "json_object"},
            "max_tokens": 200, "temperature": 0}
    choice = whole(body).choices[0]
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict), choice
    refused(openai.BadRequestError, messages=HELLO, response_format={"type": "json_object"})


def stream_helper() -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO, max_tokens=200, temperature=0) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content


def completions() -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0, "logprobs": 2}
    answer = whole(body, Completion, "/completions")
    chunks = streamed(body, Completion, "/completions")
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == answer.choices[0].text
    assert len(answer.choices[0].logprobs.tokens) == 6


def models() -> None:
    assert MODEL in [model.id for model in client.models.list().data]
    ours = ("device", "status", "p50_ttft_ms", "inflight")
    strictly(Model, http.get(f"/models/{MODEL}").text, ours)


def refused(error: type[Exception], **change: Any) -> Any:
    try:
        client.chat.completions.create(**({"model": MODEL, "messages": HELLO, "max_tokens": 2} | change))
    except error as caught:
        assert caught.body["message"] and caught.body["type"], caught.body
        return caught
    raise AssertionError(f"{change} was accepted")


def errors() -> None:
    assert refused(openai.NotFoundError, model="gpt-none").body["code"] == "model_not_found"
    assert refused(openai.BadRequestError, temperature=9).body["param"] == "temperature"
    assert refused(openai.BadRequestError, max_tokens=10**6).body["code"] == "context_length_exceeded"
    assert refused(openai.BadRequestError, extra_body={"no_such": 1}).body["param"] == "no_such"
    other = OpenAI(base_url=checks.BASE_URL, api_key="wrong", max_retries=0)
    try:
        other.models.list()
    except openai.AuthenticationError as caught:
        assert caught.body["code"] == "invalid_api_key"
    else:
        raise AssertionError("a wrong key was accepted")


checks.run("openai-python", {name: globals()[name] for name in (
    "chat", "chat_stream_says_the_same", "roles_and_parts", "choices", "stop_strings", "logprobs", "sampling_parameters",
    "tools_whole", "tools_streamed", "tool_results", "json_schema", "json_object", "stream_helper", "completions", "models",
    "errors",
)})
