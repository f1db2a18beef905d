"""Writes the numeric fixtures: logits, greedy texts with their margins, and chats that end by themselves."""

from pathlib import Path

import numpy
import torch

import output
import prompts
import reference_model
import reference_tokenizer
from tokenizer_fixtures import chat_ids, render

GREEDY_TOKENS = 64
# Along the greedy text every so many-eth logit is kept: a fair sample of the vocabulary in a file of bearable size.
PATH_STRIDE = 128
CHAT_TOKENS_MAX = 200
# An ending chat is kept only if every choice on its way was at least this clear, some times the quantisation noise, so
# that an integer path must take the same way and an exact count can be demanded of it.
CHAT_MARGIN_MIN = 0.5


def write(path: Path, parts) -> None:
    torch.manual_seed(0)
    tokenizer = reference_tokenizer.load(path)
    model = reference_model.load(path)
    if "logits" in parts:
        _write_logits(path, tokenizer, model)
    if "chat" in parts:
        _write_chats(path, tokenizer, model)


def _write_logits(path: Path, tokenizer, model) -> None:
    cases, rows, path_rows = [], [], []
    for name, prompt in prompts.GOLDEN.items():
        ids = _ids(tokenizer, prompt)
        steps = _greedy(model, ids, GREEDY_TOKENS, eos_id=None)
        greedy = [step["ids"][0] for step in steps]
        if tokenizer.eos_id in greedy:
            print(f"note: {name!r} reaches the end of its text within {GREEDY_TOKENS} tokens and runs past it")
        _check_by_whole_pass(model, ids, steps)
        rows.append(steps[0]["logits"])
        path_rows.append(numpy.stack([step["logits"][::PATH_STRIDE] for step in steps]))
        top2 = [[*step["ids"], *(round(value, 5) for value in step["values"])] for step in steps]
        cases.append({"name": name, "ids": ids, "top2": top2})
        print(f"{name}: {len(ids)} tokens")
    logits = numpy.stack(rows).astype("<f4")
    logits.tofile(output.ENGINE / "golden_logits.f32")
    numpy.stack(path_rows).astype("<f4").tofile(output.ENGINE / "golden_path.f32")
    body = {
        "note": "golden_logits.f32 holds, little-endian float32 and in the order of `prompts`, every logit at each prompt's last "
        "position. `top2`: for each position of the greedy continuation [best id, second id, best logit, second logit]. "
        "golden_path.f32: [prompts, positions of the continuation, every `path_stride`-th logit]",
        "vocab_size": logits.shape[1],
        "path_stride": PATH_STRIDE,
        "prompts": cases,
    }
    output.write_json("golden.json", path, body, output.ENGINE)


def _write_chats(path: Path, tokenizer, model) -> None:
    golden = [(name, chat) for name, chat in prompts.GOLDEN.items() if not isinstance(chat, str)]
    cases = []
    more = [(None, chat) for chat in prompts.ENDING_CHATS if all(chat != messages for _, messages in golden)]
    for name, messages in golden + more:
        ids = _ids(tokenizer, messages)
        steps = _greedy(model, ids, CHAT_TOKENS_MAX, tokenizer.eos_id, 0.0 if name else CHAT_MARGIN_MIN)
        greedy = [step["ids"][0] for step in steps]
        margin = min(step["values"][0] - step["values"][1] for step in steps)
        ended = greedy[-1] == tokenizer.eos_id
        clear = ended and margin >= CHAT_MARGIN_MIN
        print(f"{len(greedy):4} tokens, ended {ended}, margin {margin:.3f}, {name or messages[-1]['content']!r}")
        if not (clear or name):
            continue
        case = {"messages": messages, "rendered": render(tokenizer, messages, True), "prompt_ids": ids, "completion_ids": greedy}
        text = tokenizer.plain.decode([i for i in greedy if i != tokenizer.eos_id])
        cases.append(case | {"text": text, "ended_by_eos": ended, "margin_min": round(margin, 4)})
    body = {"note": "completion_ids include the end-of-sequence token where ended_by_eos", "max_tokens": CHAT_TOKENS_MAX, "chats": cases}
    output.write_json("chat_greedy.json", path, body)


def _ids(tokenizer, prompt) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer.plain.encode(prompt, add_special_tokens=False).ids
    return chat_ids(tokenizer, prompt, True)


@torch.no_grad()
def _greedy(model, ids: list[int], count: int, eos_id: int | None, margin_min: float = 0.0) -> list[dict]:
    """Up to `count` greedy steps, with the top-2 ids and logits of each; gives up at a choice below `margin_min`."""
    steps, cache, new = [], None, ids
    while len(steps) < count and not (steps and steps[-1]["ids"][0] == eos_id):
        result = model(torch.tensor([new]), cache=cache, use_cache=True)
        cache, logits = result.cache, result.logits[0, -1]
        top = torch.topk(logits, 2)
        steps.append({"ids": top.indices.tolist(), "values": top.values.tolist(), "logits": logits.numpy().copy()})
        new = [steps[-1]["ids"][0]]
        if top.values[0] - top.values[1] < margin_min:
            break
    return steps


@torch.no_grad()
def _check_by_whole_pass(model, ids: list[int], steps: list[dict]) -> None:
    """Without any cache, in one pass over prompt and greedy text, the same choices come out."""
    greedy = [step["ids"][0] for step in steps]
    logits = model(torch.tensor([ids + greedy[:-1]]), use_cache=False).logits[0, len(ids) - 1 :]
    for position, step in enumerate(steps):
        values = logits[position, step["ids"]]
        assert abs(values[0].item() - step["values"][0]) < 1e-3, f"cached and uncached logits differ at {position}"
        assert logits[position].argmax().item() == step["ids"][0] or step["values"][0] - step["values"][1] < 1e-3
