"""Compares the greedy answers that `gpu_bench answers` wrote with Transformers.

    compare.py golden ANSWERS.json golden.json       with committed fixtures: needs nothing but Python
    compare.py transformers ANSWERS.json MODEL.gguf  with the Transformers and PyTorch of this machine

Ends with 1 where they differ by more than rounding activations to sixteen bits explains, with 77 where the reference
cannot run here. The last line says what was found, or why not.
"""

import glob
import importlib.util
import json
import os
import pathlib
import sys

# Most that a log-probability, or the distance between two of them, may differ from the reference's: activations are rounded
# to sixteen bits some 200 times. Where the reference's best two tokens are closer, either may be chosen.
TOLERANCE = 0.1
SKIPPED = 77


class Difference(Exception):
    """The answers are not the reference's."""


def skip(reason):
    print(reason)
    sys.exit(SKIPPED)


def golden(answers, path):
    """Tokens along the reference's greedy text, and the distance between its best two logits, until both part."""
    with open(path, encoding="utf-8") as file:
        prompts = {prompt["name"]: prompt for prompt in json.load(file)["prompts"]}
    compared, largest, parted = 0, 0.0, 0
    for answer in answers:
        for position, (token, top) in enumerate(zip(answer["tokens"], answer["top"])):
            best, second, best_logit, second_logit = prompts[answer["name"]]["top2"][position]
            margin = best_logit - second_logit
            if token != best:
                part(answer, position, token, best, margin)
                parted += 1
                break
            compared += 1
            ours = dict((token, logprob) for token, logprob in top)
            if second in ours:
                largest = max(largest, abs(ours[best] - ours[second] - margin))
    if largest > TOLERANCE:
        raise Difference(f"the distance of the best two tokens differs by {largest:.4f}, allowed is {TOLERANCE}")
    print(f"{compared} tokens of {len(answers)} prompts equal the fixtures', {parted} answers part where two tokens are nearly "
          f"equal; distances of the best two differ by {largest:.4f} at most, allowed is {TOLERANCE}")


def part(answer, position, token, best, margin):
    """Says where an answer leaves the reference's; raises if the reference was sure."""
    where = f"prompt '{answer['name']}', token {position}: {token}, the reference's is {best} by {margin:.4f}"
    if margin > TOLERANCE:
        raise Difference(where)
    print(where)


def reference(path):
    """Transformers' model on the file's weights, in single precision; ends with SKIPPED where there can be none."""
    beside = os.path.dirname(os.path.abspath(__file__))
    # Reads the file. It is plain Python, and so may stand beside this script.
    sys.path[:0] = glob.glob(os.path.join(beside, "gguf-*.whl"))
    for module in ("torch", "transformers", "gguf"):
        if importlib.util.find_spec(module) is None:
            skip(f"the Python module {module} is not installed")
    try:
        import torch
        import transformers
        import reference_model

        model = reference_model.load(pathlib.Path(path), verify=False)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        versions = f"Transformers {transformers.__version__}, PyTorch {torch.__version__} on {device}"
        return torch, model.to(device), versions
    except Exception as error:  # whatever ails the reference is no fault of what it would be compared with
        skip(f"the reference cannot be loaded: {type(error).__name__}: {error}".splitlines()[0])


def transformers(answers, path):
    """Log-probabilities of every token and its alternatives, the reference being given our own text."""
    torch, model, versions = reference(path)
    compared, largest, parted = 0, 0.0, 0
    for answer in answers:
        prompt, tokens = answer["prompt"], answer["tokens"]
        ids = torch.tensor([prompt + tokens], device=model.device)
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1:-1].double()
        logprobs = torch.log_softmax(logits, dim=-1).cpu()
        for position, (token, top) in enumerate(zip(tokens, answer["top"])):
            theirs = logprobs[position]
            compared += 1
            for candidate, logprob in top + [[token, answer["logprobs"][position]]]:
                largest = max(largest, abs(theirs[candidate].item() - logprob))
            best = theirs.argmax().item()
            if token != best:
                part(answer, position, token, best, (theirs[best] - theirs[token]).item())
                parted += 1
    if largest > TOLERANCE:
        raise Difference(f"a log-probability differs by {largest:.4f}, allowed is {TOLERANCE}")
    print(f"{compared} tokens of {len(answers)} prompts, {parted} of them the second of two that are nearly equal; "
          f"log-probabilities differ by {largest:.4f} at most, allowed is {TOLERANCE} ({versions})")


def main():
    kind, answers_path, reference_path = sys.argv[1:]
    with open(answers_path, encoding="utf-8") as file:
        answers = json.load(file)
    try:
        {"golden": golden, "transformers": transformers}[kind](answers, reference_path)
    except Difference as difference:
        print(difference)
        sys.exit(1)


if __name__ == "__main__":
    main()
