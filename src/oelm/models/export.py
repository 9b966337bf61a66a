"""Our GPT as the stock architecture that computes the same: GPT-2, GPT-NeoX, Llama or Qwen3.

>>> from oelm import GPT, GPTConfig
>>> model = GPT(GPTConfig.of_size("demo", vocab_size=64))
>>> stock = to_stock(model)
>>> ids = torch.tensor([[5, 6, 7]])
>>> type(stock).__name__, torch.allclose(stock(ids).logits, model.eval()(ids), atol=1e-5)
('GPT2LMHeadModel', True)
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from oelm.errors import OelmError
from oelm.freezing.projections import merge
from oelm.models.attention import NORM_EPS
from oelm.models.gpt import GPT
from oelm.models.shape import GPTConfig


@dataclass(frozen=True)
class Stock:
    """A stock architecture: what its settings and its tensors are called."""

    family: str
    """GPT2 of GPT2Config."""
    model: str
    settings: Callable[[GPTConfig], dict[str, Any]]
    names: dict[str, str]
    """Its modules by ours; "blocks" is where its layers are, other names of a layer are within one."""
    also: frozenset[str] = frozenset()
    """Settings it can have beyond those that all have."""
    fused: str | None = None
    """Where it has queries, keys and values in one matrix."""
    by_head: bool = False
    """Whether every head has its query, key and value rows together in there."""
    transposed: bool = False
    """Whether matrices are in × out, and all have biases."""


def to_stock(model: GPT) -> Any:
    """A stock transformers model with the same logits; what no stock architecture has is refused by name."""
    import transformers

    shape = model.config
    stock = _equal(shape)
    merged = copy.deepcopy(model)
    merge(merged)  # refuses a token shift by name
    config = getattr(transformers, f"{stock.family}Config")(**stock.settings(shape))
    result = getattr(transformers, stock.model)(config)
    missing, unexpected = result.load_state_dict(_renamed(merged, stock), strict=False)
    missing = [name for name in missing if name not in ("lm_head.weight", "embed_out.weight")]  # tied to the embedding
    if missing or unexpected:
        raise RuntimeError(f"{stock.model} of this transformers is built otherwise: {[*missing, *unexpected][:3]}")
    result.tie_weights()
    return result.eval()


def _equal(shape: GPTConfig) -> Stock:
    kinds = (shape.positions, shape.norm, shape.ffn, shape.qk_norm)
    if kinds not in STOCK:
        known = "; ".join(f"{p}, {n} norm, {f}{', qk_norm' if q else ''}" for p, n, f, q in STOCK)
        raise OelmError(
            f"no stock architecture has positions={shape.positions}, norm={shape.norm}, ffn={shape.ffn} and "
            f"qk_norm={shape.qk_norm} together; those that can be exported: {known}"
        )
    stock = STOCK[kinds]
    usual = GPTConfig(d_model=shape.d_model, num_heads=shape.num_heads)
    natural = {"kv_heads": shape.num_heads, "qk_width": shape.d_model}  # what they mean when they are not given
    for name in [f.name for f in fields(shape) if f.name not in _EVERYWHERE | stock.also]:
        if (value := getattr(shape, name)) not in (getattr(usual, name), natural.get(name)):
            raise OelmError(
                f"{name}={value} has no equal in {stock.model}, the stock architecture of the rest; "
                "the checkpoint itself loads with oelm"
            )
    return stock


def _renamed(model: GPT, stock: Stock) -> dict[str, Tensor]:
    """Our tensors under the stock architecture's names, in its layout."""
    state: dict[str, Tensor] = {}
    for path, tensor in model.state_dict().items():
        module, _, kind = path.rpartition(".")
        if module.startswith("blocks."):
            _, layer, part = module.split(".", 2)
            if stock.fused and part.removeprefix("attention.") in ("query", "key", "value"):
                continue
            module = f"{stock.names['blocks']}.{layer}.{stock.names[part]}"
            if stock.transposed and tensor.ndim == 2:
                tensor = tensor.T.contiguous()
                state.setdefault(f"{module}.bias", torch.zeros(tensor.shape[1]))
        else:
            module = stock.names[module]
        state[f"{module}.{kind}"] = tensor
    for number, block in enumerate(model.blocks if stock.fused else ()):
        attention: Any = block.attention
        parts = [getattr(attention, role).weight.detach() for role in ("query", "key", "value")]
        if stock.by_head:
            parts = [part.unflatten(0, (model.config.num_heads, -1)) for part in parts]  # (heads, head_dim, d_model)
        weight = torch.cat(parts, dim=1).flatten(0, 1) if stock.by_head else torch.cat(parts)
        module = f"{stock.names['blocks']}.{number}.{stock.fused}"
        state[f"{module}.weight"] = weight.T.contiguous() if stock.transposed else weight
        if stock.transposed:
            state[f"{module}.bias"] = torch.zeros(len(weight))
    return state


def _sizes(shape: GPTConfig) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.d_model,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "max_position_embeddings": shape.max_seq_len,
        "tie_word_embeddings": True,
    }


def _gpt2(shape: GPTConfig) -> dict[str, Any]:
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), shape.dropout)
    # The exact GELU; GPT-2's own is an approximation by tanh.
    return {**_sizes(shape), **dropout, "n_inner": shape.d_ff, "activation_function": "gelu"}


def _gpt_neox(shape: GPTConfig) -> dict[str, Any]:
    rotation = {"rope_type": "default", "rope_theta": shape.rope_theta, "partial_rotary_factor": 1.0}
    dropout = dict.fromkeys(("attention_dropout", "hidden_dropout"), shape.dropout)
    return {
        **_sizes(shape),
        **dropout,
        "intermediate_size": shape.d_ff,
        "hidden_act": "gelu",
        "rope_parameters": rotation,
        "use_parallel_residual": False,
        "attention_bias": False,
    }


def _llama(shape: GPTConfig) -> dict[str, Any]:
    return {
        **_sizes(shape),
        "intermediate_size": shape.d_ff,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "attention_bias": False,
    }


_EVERYWHERE = {
    *("vocab_size", "d_model", "num_layers", "num_heads", "d_ff", "max_seq_len", "positions", "norm", "ffn", "qk_norm"),
    *(
        "dropout",
        "residual_init",
        "ffn_dropout",
        "method_architecture",
    ),  # change nothing of what a trained model computes
}
_LLAMA_NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
_GPT2_NAMES = {
    "embedding": "transformer.wte",
    "position": "transformer.wpe",
    "norm": "transformer.ln_f",
    "blocks": "transformer.h",
    "attention_norm": "ln_1",
    "ffn_norm": "ln_2",
    "attention.output": "attn.c_proj",
    "ffn.up": "mlp.c_fc",
    "ffn.down": "mlp.c_proj",
}
_NEOX_NAMES = {
    "embedding": "gpt_neox.embed_in",
    "norm": "gpt_neox.final_layer_norm",
    "blocks": "gpt_neox.layers",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.output": "attention.dense",
    "ffn.up": "mlp.dense_h_to_4h",
    "ffn.down": "mlp.dense_4h_to_h",
}
_ROTARY = frozenset({"rope_theta", "kv_heads"})

STOCK = {
    ("learned", "layer", "gelu", False): Stock(
        "GPT2", "GPT2LMHeadModel", _gpt2, _GPT2_NAMES, fused="attn.c_attn", transposed=True
    ),
    ("rotary", "layer", "gelu", False): Stock(
        "GPTNeoX",
        "GPTNeoXForCausalLM",
        _gpt_neox,
        _NEOX_NAMES,
        also=frozenset({"rope_theta"}),
        fused="attention.query_key_value",
        by_head=True,
    ),
    ("rotary", "rms", "swiglu", False): Stock("Llama", "LlamaForCausalLM", _llama, _LLAMA_NAMES, _ROTARY),
    ("rotary", "rms", "swiglu", True): Stock("Qwen3", "Qwen3ForCausalLM", _llama, _LLAMA_NAMES, _ROTARY),
}
"""By positions, norm, FFN and qk_norm. LayerNorm's ε is 1e-5 here and there."""
