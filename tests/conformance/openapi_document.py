"""The gateway's own OpenAPI document: what it serves is what the document says."""

import json

import httpx
from jsonschema import Draft202012Validator

import checks

http = httpx.Client(headers={"Authorization": f"Bearer {checks.API_KEY}"}, timeout=240)
document = http.get(checks.BASE_URL.removesuffix("/v1") + "/openapi.json").json()
HELLO = {"model": checks.MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 6}


def valid(schema: str, value: object) -> None:
    whole = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    Draft202012Validator(whole).validate(value)


def get(path: str, schema: str, status: int = 200, **change: str) -> None:
    response = http.get(checks.BASE_URL + path, **change)
    assert response.status_code == status, response.text
    valid(schema, response.json())


def post(path: str, body: dict, whole: str, chunk: str) -> None:
    response = http.post(checks.BASE_URL + path, json=body)
    assert response.status_code == 200, response.text
    valid(whole, response.json())
    told = document["paths"][path]["post"]["responses"]["200"]["headers"]
    ours = [name for name in response.headers if name.startswith("x-")]
    assert set(ours) <= set(told), set(ours) - set(told)
    assert {name for name, header in told.items() if header.get("required")} <= set(ours), ours
    stream = body | {"stream": True, "stream_options": {"include_usage": True}}
    lines = [line for line in http.post(checks.BASE_URL + path, json=stream).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        valid(chunk, json.loads(line.removeprefix("data: ")))


def document_is_sound() -> None:
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert document["openapi"].startswith("3.1")


def chats() -> None:
    for change in ({}, {"logprobs": True, "top_logprobs": 2}, {"n": 2, "temperature": 1}):
        valid("ChatRequest", HELLO | change)
        post("/chat/completions", HELLO | change, "ChatCompletion", "ChatCompletionChunk")


def completions() -> None:
    for change in ({}, {"logprobs": 2}):
        body = {"model": checks.MODEL, "prompt": "Once", "max_tokens": 4} | change
        valid("CompletionRequest", body)
        post("/completions", body, "Completion", "Completion")


def models_and_metrics() -> None:
    get("/models", "ModelList")
    get(f"/models/{checks.MODEL}", "Model")
    get(f"/metrics/serving?model={checks.MODEL}", "Serving")


def errors() -> None:
    get("/models/none", "Error", 404)
    get("/metrics/serving", "Error", 400)
    get("/models", "Error", 401, headers={"Authorization": "Bearer wrong"})
    response = http.post(checks.BASE_URL + "/chat/completions", json=HELLO | {"temperature": 9})
    assert response.status_code == 400
    valid("Error", response.json())


checks.run("openapi", {name: globals()[name] for name in (
    "document_is_sound", "chats", "completions", "models_and_metrics", "errors",
)})
