"""The official `openai` client, unmodified, sixteen requests at once: chat and completion, streaming and not.

Reads WEIR_BASE_URL, WEIR_API_KEY and WEIR_MODEL from the environment and prints one JSON object a line for each
request: what the client was told beside what the reference tokenizer and the reference model's own greedy text say.
The caller compares both with the ledger and with the workers' execution records.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from openai import AsyncOpenAI

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "reference"))

import prompts  # noqa: E402  (plain data, no dependency)

MODEL = os.environ["WEIR_MODEL"]
client = AsyncOpenAI(
    base_url=os.environ["WEIR_BASE_URL"], api_key=os.environ["WEIR_API_KEY"], max_retries=0, timeout=240
)


def chat_plans() -> list[dict]:
    """Chats of the fixture: cut by the length at several places, and run to their own clear end where they have one."""
    fixture = json.loads((TESTS / "reference/fixtures/chat_greedy.json").read_text())
    plans = []
    for number, chat in enumerate(fixture["chats"]):
        cut = 3 + 7 * (number % 11)
        common = {"kind": "chat", "messages": chat["messages"], "expected_prompt_tokens": len(chat["prompt_ids"])}
        ends = chat["ended_by_eos"] and chat["margin_min"] >= 0.5
        if cut < len(chat["completion_ids"]):
            plans.append(common | {"max_tokens": cut, "expected_tokens": cut, "expected_reason": "length"})
        if ends:
            length = len(chat["completion_ids"])
            plans.append(common | {"max_tokens": 256, "expected_tokens": length, "expected_reason": "stop", "text": chat["text"]})
            plans.append(common | {"max_tokens": length, "expected_tokens": length, "expected_reason": "stop", "text": chat["text"]})
    return plans


def completion_plans() -> list[dict]:
    golden = json.loads((TESTS.parent / "data-plane/engine/tests/fixtures/golden.json").read_text())
    ids = {case["name"]: case["ids"] for case in golden["prompts"]}
    plans = []
    for number, (name, prompt) in enumerate(prompts.GOLDEN.items()):
        if isinstance(prompt, str):
            tokens = 1 + 5 * (number % 9)
            plans.append({"kind": "completion", "prompt": prompt, "max_tokens": tokens, "expected_prompt_tokens": len(ids[name]),
                          "expected_tokens": tokens, "expected_reason": "length"})
    return plans


async def chat(plan: dict) -> dict:
    arguments = {"model": MODEL, "messages": plan["messages"], "max_tokens": plan["max_tokens"], "temperature": 0}
    if not plan["stream"]:
        answer = await client.chat.completions.create(**arguments)
        choice = answer.choices[0]
        return told(answer.id, answer.usage, choice.finish_reason, choice.message.content)
    text, reason, usage, identity = "", None, None, None
    stream = await client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        identity = chunk.id
        if chunk.usage is not None:
            assert chunk.choices == [], "the usage chunk carries no choice"
            usage = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return told(identity, usage, reason, text)


async def completion(plan: dict) -> dict:
    arguments = {"model": MODEL, "prompt": plan["prompt"], "max_tokens": plan["max_tokens"], "temperature": 0}
    if not plan["stream"]:
        answer = await client.completions.create(**arguments)
        return told(answer.id, answer.usage, answer.choices[0].finish_reason, answer.choices[0].text)
    text, reason, usage, identity = "", None, None, None
    stream = await client.completions.create(**arguments, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        identity = chunk.id
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.text
            reason = choice.finish_reason or reason
    return told(identity, usage, reason, text)


def told(identity, usage, reason, text) -> dict:
    details = usage.prompt_tokens_details
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return {"id": identity, "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
            "cached_tokens": (details.cached_tokens if details else 0) or 0, "finish_reason": reason, "told_text": text}


async def main() -> None:
    models = [model.id async for model in client.models.list()]
    assert MODEL in models, models
    plans = chat_plans() + completion_plans()
    # Each plan streaming and not; the two halves are far apart, so that kinds and lengths mix.
    plans = [plan | {"stream": False} for plan in plans] + [plan | {"stream": True} for plan in reversed(plans)]
    at_once = asyncio.Semaphore(16)

    async def run(plan: dict) -> None:
        async with at_once:
            answer = await (chat if plan["kind"] == "chat" else completion)(plan)
        plan.pop("messages", None)
        plan.pop("prompt", None)
        print(json.dumps(plan | answer), flush=True)

    await asyncio.gather(*(run(plan) for plan in plans))


asyncio.run(main())
