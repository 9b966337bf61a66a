"""The models that ours are compared with: Hugging Face's, of the same shape, from a configuration, with fresh weights.

>>> sorted(PEERS)
['bert', 'bert_fused', 'gpt2', 'gpt2_fused']
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from oelm.models.gpt import GPTConfig


@dataclass(frozen=True)
class Peer:
    summary: str
    build: "Callable[[GPTConfig], HuggingFaceLoss]"
    fused_optimizer: bool
    """AdamW as our trainer has it; otherwise as torch gives it to whoever asks for nothing."""


class HuggingFaceLoss(nn.Module):
    """A Hugging Face model behind our call: token ids and targets in, the mean loss out."""

    def __init__(self, model: nn.Module, shifts_labels: bool, **arguments: Any) -> None:
        super().__init__()
        self.model = model
        self.shifts_labels = shifts_labels  # then it takes the inputs themselves, as its users call it
        self.arguments = arguments

    def forward(self, input_ids: Tensor, targets: Tensor) -> Tensor:
        labels = (input_ids if self.shifts_labels else targets).contiguous()
        return self.model(input_ids=input_ids, labels=labels, **self.arguments).loss


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
    return HuggingFaceLoss(model, shifts_labels=True, use_cache=False)


def bert(config: GPTConfig) -> HuggingFaceLoss:
    """It looks both ways, so its attention computes twice what a decoder's does."""
    from transformers import BertConfig, BertForMaskedLM

    shape = BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.d_model,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.d_ff,
        max_position_embeddings=config.max_seq_len,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
    )
    shape._attn_implementation = "sdpa"
    return HuggingFaceLoss(BertForMaskedLM(shape), shifts_labels=False)


PEERS: dict[str, Peer] = {
    "gpt2": Peer("Hugging Face GPT-2, torch's default AdamW", gpt2, fused_optimizer=False),
    "gpt2_fused": Peer("Hugging Face GPT-2, fused AdamW like ours", gpt2, fused_optimizer=True),
    "bert": Peer("Hugging Face BERT, torch's default AdamW", bert, fused_optimizer=False),
    "bert_fused": Peer("Hugging Face BERT, fused AdamW like ours", bert, fused_optimizer=True),
}
