"""GPT-2's fused projection, split so that a part of it can be frozen.

`SplitProjection` stands where GPT-2 has one fused matrix for query, key and value: half a matrix cannot be frozen, so
each part becomes a module of its own. The model's forward pass is untouched, and so is the layout of its files:
`state_dict`, `save_pretrained` and `load_state_dict` speak of the one fused matrix, in × out, as stock GPT-2 does.

>>> import torch
>>> from transformers.pytorch_utils import Conv1D
>>> fused = Conv1D(12, 4)
>>> split = SplitProjection(fused, ("query", "key", "value"))
>>> x = torch.randn(2, 4)
>>> torch.allclose(split(x), fused(x), atol=1e-6), list(split.state_dict())
(True, ['weight', 'bias'])
"""

from typing import Any

import torch
from torch import Tensor, nn


class SplitProjection(nn.Module):
    """A `Conv1D` (in × out) as several `Linear` (out × in), whose outputs are concatenated again."""

    def __init__(self, fused: nn.Module, parts: tuple[str, ...]) -> None:
        super().__init__()
        weight: Tensor = fused.weight  # type: ignore[assignment]
        bias: Tensor = fused.bias  # type: ignore[assignment]
        self.parts = parts
        rows = weight.shape[1] // len(parts)
        for number, part in enumerate(parts):
            chosen = slice(number * rows, (number + 1) * rows)
            linear = nn.Linear(weight.shape[0], rows, device="meta", dtype=weight.dtype)
            linear.weight = nn.Parameter(weight.detach()[:, chosen].T.contiguous(), weight.requires_grad)
            linear.bias = nn.Parameter(bias.detach()[chosen].clone(), bias.requires_grad)
            self.add_module(part, linear)
        self.train(fused.training)
        self.register_state_dict_post_hook(_fuse)
        self.register_load_state_dict_pre_hook(_divide)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.get_submodule(part)(x) for part in self.parts], dim=-1)


def _fuse(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Part by part → the one matrix of the stock layout. Left alone where an adapter has wrapped a part."""
    names = [f"{prefix}{part}" for part in module.parts]
    if not all(f"{name}.weight" in state for name in names):
        return
    state[f"{prefix}weight"] = torch.cat([state.pop(f"{name}.weight").T for name in names], dim=1).contiguous()
    state[f"{prefix}bias"] = torch.cat([state.pop(f"{name}.bias") for name in names])


def _divide(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """The one matrix of the stock layout → part by part."""
    if f"{prefix}weight" not in state:
        return
    parts = module.parts
    weights = state.pop(f"{prefix}weight").chunk(len(parts), dim=1)
    biases = state.pop(f"{prefix}bias").chunk(len(parts))
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        state[f"{prefix}{part}.weight"] = weight.T.contiguous()
        state[f"{prefix}{part}.bias"] = bias
