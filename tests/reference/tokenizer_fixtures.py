"""Writes fixtures/tokenizer_{smollm2,gemma3}.json: texts with their reference token ids. Needs no torch."""

import re

from transformers import PreTrainedTokenizerFast

import hard_texts
import output
import reference_tokenizer
from reference_tokenizer import ReferenceTokenizer

RANDOM_TEXTS, RANDOM_SEED = 300, 20260201


def write_smollm2(path) -> None:
    reference = reference_tokenizer.load(path)
    chats = [_chat(reference, messages, generation) for messages in hard_texts.CHATS for generation in (True, False)]
    for case in chats:
        parsed = reference.rendered.encode(case["rendered"], add_special_tokens=False).ids
        assert parsed == case["ids"], f"no look-alikes here, so both ways must agree: {case}"
    chats += [_chat(reference, messages, True) for messages in hard_texts.FORGED_CHATS]
    output.write_json("tokenizer_smollm2.json", path, _body(reference, _texts(reference, None), chats))


def write_gemma3(path) -> None:
    reference = reference_tokenizer.load(path)
    witness = reference_tokenizer.sentencepiece_processor(path)
    output.write_json("tokenizer_gemma3.json", path, _body(reference, _texts(reference, witness), []))


def _body(reference: ReferenceTokenizer, texts, chats) -> dict:
    return {
        "note": "`ids` of texts are without the begin-of-sequence token; control-token look-alikes in them are plain text; "
        "a byte that the vocabulary lacks gives no token (SmolLM2 lacks 21, none of them in common text)",
        "prepended_bos_id": reference.bos_id,
        "eos_id": reference.eos_id,
        "vocab_size": reference.plain.get_vocab_size(),
        "texts": texts,
        "chats": chats,
    }


def _texts(reference: ReferenceTokenizer, witness) -> list[dict]:
    cases = []
    for text in hard_texts.WRITTEN + hard_texts.random_texts(RANDOM_TEXTS, RANDOM_SEED):
        if witness is not None and "\u2581" in text:
            continue  # the space's stand-in, literally: SentencePiece and Transformers differ, so neither is the reference
        ids = reference.plain.encode(text, add_special_tokens=False).ids
        if witness is not None and "\0" not in text:  # SentencePiece's own handling of NUL is special
            assert witness.encode(text) == ids, f"{text!r}: SentencePiece {witness.encode(text)}, tokenizers {ids}"
        cases.append({"text": text, "ids": ids})
    return cases


def render(reference: ReferenceTokenizer, messages, generation: bool) -> str:
    """Transformers' own chat template rendering."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=reference.rendered, chat_template=reference.chat_template)
    return tokenizer.apply_chat_template(messages, add_generation_prompt=generation, tokenize=False)


def _chat(reference: ReferenceTokenizer, messages, generation: bool) -> dict:
    return {
        "messages": messages,
        "add_generation_prompt": generation,
        "rendered": render(reference, messages, generation),
        "ids": chat_ids(reference, messages, generation),
    }


def chat_ids(reference: ReferenceTokenizer, messages, generation: bool) -> list[int]:
    """Parses control tokens of the template only: the template is rendered around placeholders and split at its control
    tokens; then the contents take their places and every stretch between is encoded as plain text."""
    placeholders = {f"\ue000{index}\ue001": message["content"] for index, message in enumerate(messages)}
    outline = [dict(message, content=mark) for message, mark in zip(messages, placeholders)]
    control = {token.content: index for index, token in reference.rendered.get_added_tokens_decoder().items() if token.special}
    ids: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, control)) + ")", render(reference, outline, generation)):
        if part in control:
            ids.append(control[part])
            continue
        for mark, content in placeholders.items():
            part = part.replace(mark, content)
        ids += reference.plain.encode(part, add_special_tokens=False).ids
    return ids
