"""Small random models of the families that transformers ships, from its own configurations with shrunken fields."""

from functools import cache
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.models.auto import modeling_auto as auto

SMALL = {
    **dict.fromkeys(("vocab_size", "tgt_vocab_size", "src_vocab_size", "n_tokens"), 60),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("embedding_size", "input_embedding_size", "output_embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv"), 8),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner"), 48),
    **dict.fromkeys(("hidden_dim", "ffn_hidden_size", "dff", "moe_intermediate_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_target_positions"), 40),
    **dict.fromkeys(("num_local_experts", "num_experts"), 4),
    "max_source_positions": 16,
    "num_mel_bins": 8,
    "rotary_dim": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "attn_implementation": "eager",
}
"""Every field that decides a size, under all its names; a configuration gets those it knows."""

CAUSAL = [
    "bloom",
    "codegen",
    "cohere",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "mpt",
    "olmo",
    "olmo2",
    "openai-gpt",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
    "stablelm",
    "starcoder2",
]
MASKED = [
    "albert",
    "bert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "esm",
    "modernbert",
    "mpnet",
    "roberta",
    "xlm",
    "xlm-roberta",
]
SEQ2SEQ = ["bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "prophetnet", "t5", "whisper"]
FAMILIES = [*CAUSAL, *MASKED, *SEQ2SEQ]

SETTINGS: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "falcon": {"new_decoder_architecture": True},  # grouped; the older ways to fuse have a test of their own
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "esm": {"mask_token_id": 3, "pad_token_id": 0},
}
REFUSED = {
    "deepseek_v2": "latent",
    "deepseek_v3": "latent",
    "minicpm3": "latent",
    "kimi_linear": "linear",
    "minimax": "linear",
    "qwen3_next": "linear",
    "rwkv": "linear",
    "falcon_h1": "state-space",
    "falcon_mamba": "state-space",
    "jamba": "state-space",
    "mamba": "state-space",
    "nemotron_h": "state-space",
    "recurrent_gemma": "state-space",
    "xlstm": "state-space",
    "longformer": "other queries and keys",
    "luke": "other queries and keys",
    "xlnet": "bare parameters",
}


def build(model_type: str, device: str = "cpu") -> Any:
    """A small random model with the head that its family is trained with."""
    blank = hf.CONFIG_MAPPING[model_type]().to_dict()
    known = {name: value for name, value in SMALL.items() if blank.get(name) is not None or name == "vocab_size"}
    config = hf.CONFIG_MAPPING[model_type](**{**known, **SETTINGS.get(model_type, {})})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    with torch.device(device):
        return auto_class(model_type).from_config(config).eval()


def auto_class(model_type: str) -> Any:
    if model_type == "whisper":
        return hf.AutoModelForSpeechSeq2Seq
    if model_type in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES and model_type not in CAUSAL:
        return hf.AutoModelForSeq2SeqLM
    decodes = model_type in CAUSAL or model_type not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return hf.AutoModelForCausalLM if decodes else hf.AutoModelForMaskedLM


@cache
def inputs(model_type: str) -> dict[str, Tensor]:
    ids = torch.randint(4, 60, (2, 7), generator=torch.Generator().manual_seed(7))
    if model_type == "whisper":
        return {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": ids}
    if model_type in SEQ2SEQ:
        return {"input_ids": ids, "decoder_input_ids": ids[:, :5]}
    return {"input_ids": ids}


def logits(model: Any, model_type: str) -> Tensor:
    with torch.no_grad():
        return model(**inputs(model_type)).logits
