"""Transformers' LlamaForCausalLM in float32 on the dequantised weights of a GGUF file."""

from pathlib import Path

import gguf
import numpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM

_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def load(path: Path, verify: bool = True) -> LlamaForCausalLM:
    """`verify`: also against Transformers' own reading of the file, which needs `accelerate` and a recent version of both."""
    reader = gguf.GGUFReader(path)
    meta = lambda key: reader.fields[f"llama.{key}"].contents()
    heads, kv_heads = meta("attention.head_count"), meta("attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=meta("vocab_size"), hidden_size=meta("embedding_length"), intermediate_size=meta("feed_forward_length"),
        num_hidden_layers=meta("block_count"), num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=meta("context_length"), rms_norm_eps=meta("attention.layer_norm_rms_epsilon"),
        # The first is what version 4 reads, the second what version 5 does; the check below is for both.
        rope_theta=meta("rope.freq_base"),
        rope_parameters={"rope_type": "default", "rope_theta": meta("rope.freq_base")},
        tie_word_embeddings=True, attention_bias=False, mlp_bias=False, attn_implementation="eager",
    )
    assert meta("rope.dimension_count") == config.hidden_size // heads
    state = {}
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        name = _name(tensor.name)
        if name.endswith("q_proj.weight"):
            weights = _unpermuted(weights, heads)
        if name.endswith("k_proj.weight"):
            weights = _unpermuted(weights, kv_heads)
        state[name] = torch.from_numpy(numpy.ascontiguousarray(weights))
    assert "lm_head.weight" not in state, "this file's output head is tied to its embedding"
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config).to(torch.float32).eval()
    model.load_state_dict(state, strict=True)
    head_dim = config.hidden_size // heads
    frequencies = meta("rope.freq_base") ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    assert torch.allclose(model.model.rotary_emb.inv_freq.double(), frequencies, rtol=1e-5), "RoPE has another base"
    if verify:
        _verify_against_own_loader(model, path)
    return model


def _name(gguf_name: str) -> str:
    fixed = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    if gguf_name in fixed:
        return fixed[gguf_name]
    _, layer, part, kind = gguf_name.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}"


def _unpermuted(weights: numpy.ndarray, heads: int) -> numpy.ndarray:
    """GGUF stores the rows of q and k so that RoPE rotates neighbours; Transformers rotates halves."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _verify_against_own_loader(model: LlamaForCausalLM, path: Path) -> None:
    """Transformers reads GGUF too: both ways must give the same weights and the same logits, bit for bit."""
    own = LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
    theirs = own.state_dict()
    for name, weights in model.state_dict().items():
        assert torch.equal(weights, theirs[name]), f"{name} differs between the two loaders"
    ids = torch.tensor([[1, 4093, 198, 28120, 905, 2, 198]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, own(ids).logits), "same weights, other logits: the configurations differ"
