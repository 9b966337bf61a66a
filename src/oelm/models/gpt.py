"""Our decoder: pre-LayerNorm, GELU, tied embeddings, queries and keys in modules of their own. Plain torch.

>>> model = GPT(GPTConfig.of_size("demo", vocab_size=512))
>>> model(torch.zeros(1, 8, dtype=torch.long)).shape
torch.Size([1, 8, 512])

`shape.py` has its sizes and every variation, `attention.py` its attention. The model knows nothing of methods:
`oelm.freeze` finds its projections through `oelm.freezing.sites`. `oelm.models.huggingface` puts it behind
`AutoModelForCausalLM`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oelm.errors import OelmError
from oelm.files import write_tensors
from oelm.freezing.projections import CONFIG_KEY, describe, rebuild, require_no_shift
from oelm.models.attention import NORM_EPS, Context, KeyValueCache, rotary_angles
from oelm.models.cheap_attention import make_attention
from oelm.models.kernels import Dropout, vocabulary_loss
from oelm.models.shape import SIZES as SIZES
from oelm.models.shape import GPTConfig as GPTConfig

Named = TypeVar("Named")
MODEL_TYPE = "oelm_gpt"
INIT_STD = 0.02


class GPT(nn.Module):
    """Token ids (B, T) → logits (B, T, vocab); with `targets` (B, T), the mean cross-entropy instead."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.name_or_path = ""  # where the weights were loaded from, if they were
        self.gradient_checkpointing = False  # in training, keep the blocks' inputs only and compute them twice
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position = nn.Embedding(config.max_seq_len, config.d_model) if config.positions == "learned" else None
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = make_norm(config)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal(0.02) weights; the two projections that write to the residual stream shrink with depth (GPT-2)."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INIT_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks if self.config.residual_init == "scaled" else ():
            assert isinstance(block, Block)
            writers: tuple[Any, ...] = (block.attention.output, block.ffn.down)
            for writer in writers:
                nn.init.normal_(writer.weight, std=INIT_STD / math.sqrt(2 * self.config.num_layers))

    def forward(self, input_ids: Tensor, targets: Tensor | None = None, **context: Any) -> Tensor:
        """`context`: what `hidden` takes beside the ids."""
        hidden = self.hidden(input_ids, **context)
        if targets is None:
            return self.head(hidden)
        return vocabulary_loss(hidden.flatten(0, 1), self.embedding.weight, targets.flatten())

    def hidden(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """The normalised last hidden state (B, T, d_model), which the head turns into logits.

        `attention_mask` (B, S) marks real tokens among the S seen so far with True; T < S when a cache holds the rest.
        """
        length = input_ids.shape[1]
        seen = length if attention_mask is None else attention_mask.shape[1]
        if (longest := max(seen, length)) > self.config.max_seq_len:
            raise OelmError(f"{longest} tokens exceed max_seq_len {self.config.max_seq_len}; shorten the text")
        if cache is not None and (seen > length or cache.get_seq_length()):
            require_no_shift(self)
        if position_ids is None:
            position_ids = torch.arange(seen - length, seen, device=input_ids.device)[None]

        x = self.embedding(input_ids)  # (B, T, d_model)
        if self.position is not None:
            x = x + self.position(position_ids)
            rotation = None
        else:
            rotation = rotary_angles(position_ids, self.config.qk_head_dim, x.dtype, self.config.rope_theta)
        x = self.dropout(x)
        mask = _attention_mask(length, seen, attention_mask, self.config.causal)
        context = Context(position_ids, rotation, mask, cache)
        checkpointed = self.gradient_checkpointing and self.training and torch.is_grad_enabled() and cache is None
        blocks, together = list(self.blocks), self.config.share  # layers that share probabilities are one unit
        for unit in (blocks[i : i + together] for i in range(0, len(blocks), together)):
            if checkpointed:  # dropout falls on the same places both times: checkpoint keeps the random state
                x = checkpoint(_through, unit, x, context, use_reentrant=False)
            else:
                x = _through(unit, x, context)
        return self.norm(x)

    def head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embedding.weight)

    def save_pretrained(self, folder: str | Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Write what from_pretrained expects; `state_dict` is for weights that are sharded over processes."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"model_type": MODEL_TYPE, "architectures": ["GPTForCausalLM"], **asdict(self.config)}
        if described := describe(self):
            config[CONFIG_KEY] = described
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        write_tensors(folder / "model.safetensors", self.state_dict() if state_dict is None else state_dict)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "GPT":
        """Read what `save_pretrained` wrote here or from the Hugging Face side."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise OelmError(f"{folder} holds no readable GPT checkpoint ({error}); give a checkpoint folder") from error
        if config.get("model_type") != MODEL_TYPE:
            raise OelmError(f"{folder} holds a {config.get('model_type')!r} model, not {MODEL_TYPE!r}")
        known = {f.name for f in fields(GPTConfig)}
        model = cls(GPTConfig(**{key: value for key, value in config.items() if key in known}))
        rebuild(model, without_prefix(config.get(CONFIG_KEY, {})))
        try:
            model.load_state_dict(without_prefix(load_file(folder / "model.safetensors")))
        except (OSError, RuntimeError, SafetensorError) as error:
            why = " ".join(str(error).split())
            raise OelmError(f"{folder}/model.safetensors does not fit its config: {why}") from error
        model.name_or_path = str(folder)  # as in transformers: these weights are worth keeping
        return model


def _through(blocks: list[nn.Module], x: Tensor, context: Context) -> Tensor:
    for block in blocks:
        x = block(x, context)
    return x


def without_prefix(named: Mapping[str, Named]) -> dict[str, Named]:
    """Paths as in our own files; in those of the Hugging Face classes, which hold the model as `gpt`, that precedes."""
    return {path.removeprefix("gpt."): value for path, value in named.items()}


class Block(nn.Module):
    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = make_attention(config, layer)
        self.ffn_norm = make_norm(config)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = x + self.attention(self.attention_norm(x), context)
        return x + self.ffn(self.ffn_norm(x))


class FeedForward(nn.Module):
    """GELU with biases, or SwiGLU without any, as in Llama."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=False) if config.ffn == "swiglu" else None
        self.up = nn.Linear(config.d_model, config.d_ff, bias=self.gate is None)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=self.gate is None)
        self.inner_dropout = Dropout(config.dropout if config.ffn_dropout else 0.0)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        wide = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return self.dropout(self.down(self.inner_dropout(wide)))


def make_norm(config: GPTConfig) -> nn.Module:
    return nn.LayerNorm(config.d_model) if config.norm == "layer" else nn.RMSNorm(config.d_model, eps=NORM_EPS)


def _attention_mask(length: int, seen: int, attention_mask: Tensor | None, causal: bool) -> Tensor | None:
    """None where plain attention (or one token against everything before it) is right, else (B, 1, T, S)."""
    if attention_mask is None:
        return None
    padded = not bool(attention_mask.all())
    if not padded and length in (1, seen):
        return None
    if not causal:
        return attention_mask[:, None, None, :].bool()
    past = torch.ones(length, seen, dtype=torch.bool, device=attention_mask.device).tril(seen - length)
    allowed = past & attention_mask[:, None, None, :].bool()
    # A padding row that sees nothing would become NaN in softmax; let it see itself, nobody reads it.
    return allowed | torch.eye(seen, dtype=torch.bool, device=past.device)[seen - length :]
