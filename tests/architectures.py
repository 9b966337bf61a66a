"""Small random models of every supported architecture, built from transformers' own classes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

_WIDTH, _LAYERS, _HEADS, _VOCABULARY = 32, 2, 4, 60
_BERT = {
    "vocab_size": _VOCABULARY,
    "hidden_size": _WIDTH,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "head_dim": 8}
_T5 = {"vocab_size": _VOCABULARY, "d_model": _WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": _LAYERS, "num_heads": _HEADS}
_BART = {
    "vocab_size": _VOCABULARY,
    "d_model": _WIDTH,
    "encoder_layers": _LAYERS,
    "decoder_layers": _LAYERS,
    "encoder_attention_heads": _HEADS,
    "decoder_attention_heads": _HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
}
_GPT2 = {"vocab_size": _VOCABULARY, "n_embd": _WIDTH, "n_layer": _LAYERS, "n_head": _HEADS, "n_positions": 40}


@dataclass(frozen=True)
class Architecture:
    build: Callable[[], nn.Module]
    sites: int
    """Query and key projections over all layers."""
    key_heads: int = _HEADS

    def model(self, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        return self.build().eval()


ARCHITECTURES = {
    "bert": Architecture(lambda: hf.BertForSequenceClassification(hf.BertConfig(**_BERT)), 4),
    "bert decoder": Architecture(
        lambda: hf.BertLMHeadModel(hf.BertConfig(**_BERT, is_decoder=True, add_cross_attention=True)), 8
    ),
    "roberta": Architecture(lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**_BERT)), 4),
    "xlm-roberta": Architecture(lambda: hf.XLMRobertaForSequenceClassification(hf.XLMRobertaConfig(**_BERT)), 4),
    "distilbert": Architecture(
        lambda: hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(vocab_size=_VOCABULARY, dim=_WIDTH, n_layers=_LAYERS, n_heads=_HEADS, hidden_dim=48)
        ),
        4,
    ),
    "electra": Architecture(
        lambda: hf.ElectraForSequenceClassification(hf.ElectraConfig(**_BERT, embedding_size=16)), 4
    ),
    "gpt2": Architecture(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**_GPT2)), 4),
    "gpt2 decoder": Architecture(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**_GPT2, add_cross_attention=True)), 8),
    "llama": Architecture(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_LLAMA)), 4, key_heads=2),
    "mistral": Architecture(lambda: hf.MistralForCausalLM(hf.MistralConfig(**_LLAMA)), 4, key_heads=2),
    "qwen2": Architecture(lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**_LLAMA)), 4, key_heads=2),
    "qwen3": Architecture(lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_LLAMA)), 4, key_heads=2),
    "t5": Architecture(lambda: hf.T5ForConditionalGeneration(hf.T5Config(**_T5)), 12),
    "bart": Architecture(lambda: hf.BartForConditionalGeneration(hf.BartConfig(**_BART)), 12),
    "vit": Architecture(
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**_BERT, image_size=16, patch_size=8, num_channels=3)), 4
    ),
}


def inputs(name: str) -> dict[str, torch.Tensor]:
    """Something the model can be called with."""
    generator = torch.Generator().manual_seed(7)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    ids = torch.randint(3, _VOCABULARY, (2, 9), generator=generator)
    given = {"input_ids": ids}
    if name in ("t5", "bart"):
        given["decoder_input_ids"] = ids[:, :5]
    if name.endswith("decoder"):
        given["encoder_hidden_states"] = torch.randn(2, 6, _WIDTH, generator=generator)
    return given


def logits(model: nn.Module, name: str) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs(name)).logits
