"""A fused projection, split so that a part of it can be frozen.

`SplitProjection` stands where a model has one matrix for query, key and value: a third of a matrix cannot be frozen, so
each part becomes a module of its own. The model's forward pass is untouched, and so is the layout of its files:
`state_dict`, `save_pretrained` and `load_state_dict` speak of the one fused matrix, as the stock model does.

>>> import torch
>>> from transformers.pytorch_utils import Conv1D
>>> fused = Conv1D(12, 4)
>>> split = SplitProjection(fused, ("query", "key", "value"))
>>> x = torch.randn(2, 4)
>>> torch.allclose(split(x), fused(x), atol=1e-6), list(split.state_dict())
(True, ['weight', 'bias'])
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class SplitProjection(nn.Module):
    """A `Linear` (or GPT-2's `Conv1D`, in × out) as several `Linear`, whose outputs are put together again.

    The rows of the fused matrix come in `groups` that each hold some of every part: one group is [all queries, all
    keys, all values] (GPT-2, Phi-3), one per head is [query, key, value] of every head in turn (GPT-NeoX, Bloom).
    """

    def __init__(self, fused: nn.Module, parts: tuple[str, ...], rows: Sequence[int] = (), groups: int = 1) -> None:
        """`rows` says how many each part has, if not equally many."""
        super().__init__()
        self.parts, self.groups = parts, groups
        self.is_transposed = type(fused).__name__ == "Conv1D"
        weight: Tensor = fused.weight.T if self.is_transposed else fused.weight  # type: ignore[assignment]
        bias: Tensor | None = fused.bias  # type: ignore[assignment]
        self.rows = tuple(rows or [weight.shape[0] // len(parts)] * len(parts))
        biases = [None] * len(parts) if bias is None else self.divide(bias.detach())
        for part, w, b in zip(parts, self.divide(weight.detach()), biases, strict=True):
            linear = nn.Linear(w.shape[1], w.shape[0], bias=b is not None, device="meta", dtype=w.dtype)
            linear.weight = nn.Parameter(w, weight.requires_grad)
            if b is not None and bias is not None:
                linear.bias = nn.Parameter(b, bias.requires_grad)
            self.add_module(part, linear)
        self.train(fused.training)
        self.register_state_dict_post_hook(_fuse)
        self.register_load_state_dict_pre_hook(_divide)

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self.get_submodule(part)(x) for part in self.parts]  # (…, rows of the part)
        if self.groups == 1:
            return torch.cat(outputs, dim=-1)
        return torch.cat([y.unflatten(-1, (self.groups, -1)) for y in outputs], dim=-1).flatten(-2)

    def divide(self, fused: Tensor) -> list[Tensor]:
        """(rows of all, …) → (rows of the part, …) of every part."""
        sizes = [rows // self.groups for rows in self.rows]
        pieces = fused.unflatten(0, (self.groups, -1)).split(sizes, dim=1)
        return [piece.flatten(0, 1).clone(memory_format=torch.contiguous_format) for piece in pieces]

    def fuse(self, tensors: list[Tensor]) -> Tensor:
        """The other way round."""
        return torch.cat([t.unflatten(0, (self.groups, -1)) for t in tensors], dim=1).flatten(0, 1)


def _fuse(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Part by part → the one matrix of the stock layout. Left alone where an adapter has wrapped a part."""
    names = [f"{prefix}{part}" for part in module.parts]
    if not all(f"{name}.weight" in state for name in names):
        return
    weight = module.fuse([state.pop(f"{name}.weight") for name in names])
    state[f"{prefix}weight"] = (weight.T if module.is_transposed else weight).contiguous()
    if f"{names[0]}.bias" in state:
        state[f"{prefix}bias"] = module.fuse([state.pop(f"{name}.bias") for name in names])


def _divide(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """The one matrix of the stock layout → part by part."""
    for kind in ("weight", "bias"):
        if f"{prefix}{kind}" in state:
            fused = state.pop(f"{prefix}{kind}")
            parts = module.divide(fused.T if kind == "weight" and module.is_transposed else fused)
            state.update({f"{prefix}{part}.{kind}": t for part, t in zip(module.parts, parts, strict=True)})
