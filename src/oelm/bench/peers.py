"""The models that ours are compared with, of the same shape, from a configuration, with fresh weights: Hugging Face's,
and the GPT that anybody would write with torch's own parts, as a yardstick.

>>> sorted(PEERS)
['gpt2', 'gpt2_fused', 'plain']
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.models.gpt import GPT, GPTConfig


@dataclass(frozen=True)
class Peer:
    build: Callable[[GPTConfig], nn.Module]
    """A model that takes token ids and targets and gives the mean loss."""
    counted: Callable[[GPTConfig], nn.Module]
    """A model whose matrix products are the peer's, for counting them."""
    fused_optimizer: bool
    """AdamW as our trainer has it; otherwise as torch gives it to whoever asks for nothing."""


class HuggingFaceLoss(nn.Module):
    """GPT-2 behind our call: token ids and targets in, the mean loss out. It shifts the labels itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, targets: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, labels=input_ids.contiguous(), use_cache=False).loss


def gpt2(config: GPTConfig) -> HuggingFaceLoss:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(
        vocab_size=config.vocab_size,
        n_embd=config.d_model,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        n_inner=config.d_ff,
        n_positions=config.max_seq_len,
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    shape._attn_implementation = "sdpa"
    model = GPT2LMHeadModel(shape)
    model.loss_type = "ForCausalLM"  # which it takes anyway, but not without saying so
    return HuggingFaceLoss(model)


class PlainGPT(nn.Module):
    """A decoder in torch's own words: one projection for queries, keys and values, SDPA, all logits at once."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width, wide, self.num_heads, self.drop = (
            config.d_model,
            config.d_ff,
            config.num_heads,
            nn.Dropout(config.dropout),
        )
        self.tokens, self.positions = nn.Embedding(config.vocab_size, width), nn.Embedding(config.max_seq_len, width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width, bias=False),
                    "output": nn.Linear(width, width, bias=False),
                    "norm2": nn.LayerNorm(width),
                    "ffn": nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)),
                }
            )
            for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.drop(self.tokens(input_ids) + self.positions(places))
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            parts = layer["qkv"](layer["norm1"](x)).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
            dropout = self.drop.p if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
            x = x + self.drop(layer["output"](y.transpose(1, 2).flatten(2)))
            x = x + self.drop(layer["ffn"](layer["norm2"](x)))
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


_GPT2 = Peer(gpt2, lambda config: gpt2(config).model, fused_optimizer=False)

PEERS: dict[str, Peer] = {
    "gpt2": _GPT2,
    "gpt2_fused": replace(_GPT2, fused_optimizer=True),
    "plain": Peer(PlainGPT, GPT, fused_optimizer=True),
}
