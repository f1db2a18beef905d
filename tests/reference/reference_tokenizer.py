"""Reference tokenizers, built from a GGUF's own vocabulary with the `tokenizers` library.

`plain` leaves control tokens out, so that text which looks like one stays text; `rendered` parses them, as the
output of a chat template needs. The pre-tokenizer `smollm` is Hugging Face's definition for SmolLM2: every digit
on its own, then GPT-2's byte-level split.
"""

from dataclasses import dataclass
from pathlib import Path

import sentencepiece.sentencepiece_model_pb2 as sentencepiece_proto
import sentencepiece
from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

CONTROL, USER_DEFINED, BYTE = 3, 4, 6


@dataclass
class ReferenceTokenizer:
    plain: Tokenizer
    rendered: Tokenizer
    chat_template: str | None
    bos_id: int | None  # set only where the file says that it is prepended
    eos_id: int


def load(path: Path) -> ReferenceTokenizer:
    fields = GGUFReader(path).fields

    def get(key, default=None):
        return fields[key].contents() if key in fields else default

    kind, pre = get("tokenizer.ggml.model"), get("tokenizer.ggml.pre")
    tokens, types = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    if (kind, pre) == ("gpt2", "smollm"):
        build = lambda: _byte_level(tokens, get("tokenizer.ggml.merges"))
    elif (kind, pre) == ("llama", "default"):
        merges = _merges_of_scores(tokens, types, get("tokenizer.ggml.scores"))
        build = lambda: _sentencepiece_bpe(tokens, types, merges, get("tokenizer.ggml.add_space_prefix", True))
    else:
        raise SystemExit(f"{path}: no reference for tokenizer model {kind!r} with pre-tokenizer {pre!r}")
    user_defined = [AddedToken(t, normalized=False) for t, ty in zip(tokens, types) if ty == USER_DEFINED]
    control = [AddedToken(t, normalized=False, special=True) for t, ty in zip(tokens, types) if ty == CONTROL]
    plain, rendered = build(), build()
    for tokenizer in (plain, rendered):
        if user_defined:
            tokenizer.add_tokens(user_defined)
    rendered.add_special_tokens(control)
    for tokenizer in (plain, rendered):
        assert tokenizer.get_vocab_size() == len(tokens), "an added token was not in the vocabulary"
    bos_id = get("tokenizer.ggml.bos_token_id") if get("tokenizer.ggml.add_bos_token") else None
    return ReferenceTokenizer(plain, rendered, get("tokenizer.chat_template"), bos_id, get("tokenizer.ggml.eos_token_id"))


def sentencepiece_processor(path: Path) -> sentencepiece.SentencePieceProcessor:
    """The same vocabulary as a SentencePiece model: an independent witness for `llama` tokenizers."""
    fields = GGUFReader(path).fields
    proto = sentencepiece_proto.ModelProto()
    kinds = {1: 1, 2: 2, CONTROL: 3, USER_DEFINED: 4, 5: 5, BYTE: 6}
    columns = [fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type")]
    unknown = fields["tokenizer.ggml.unknown_token_id"].contents()
    for index, (token, score, kind) in enumerate(zip(*columns)):
        kind = 2 if index == unknown else kinds[kind]
        proto.pieces.add(piece=token.replace(" ", "▁"), score=score, type=kind)
    proto.trainer_spec.model_type = sentencepiece_proto.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.vocab_size = len(proto.pieces)
    proto.trainer_spec.unk_id = unknown
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def _byte_level(tokens: list[str], merges: list[str]) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(tokens, types, merges, add_space_prefix: bool) -> Tokenizer:
    assert not add_space_prefix, "no reference for a dummy prefix"
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[3]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _merges_of_scores(tokens, types, scores) -> list[tuple[str, str]]:
    """SentencePiece joins the adjacent pair whose joined piece scores best; as merge rules, best score first."""
    normal = {token: index for index, token in enumerate(tokens) if types[index] == 1}
    ranked = sorted((t for t in normal if len(t) > 1), key=lambda t: -scores[normal[t]])
    return [(t[:cut], t[cut:]) for t in ranked for cut in range(1, len(t)) if t[:cut] in normal and t[cut:] in normal]
