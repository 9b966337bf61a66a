"""Attention of our GPT: softmax over queries and keys; `cheap_attention.py` has the others."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.models.kernels import Dropout, blocked_attention_pays, causal_attention, with_previous
from oelm.models.shape import GPTConfig

NORM_EPS = 1e-6


class KeyValueCache(Protocol):
    """What attention asks of a cache; transformers' `Cache` classes fit."""

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]: ...
    def get_seq_length(self) -> int: ...


@dataclass
class Context:
    """What every layer is told of the tokens it sees: T new ones among S so far."""

    positions: Tensor  # of the new tokens (B, T), or the same in every row (1, T)
    rotation: tuple[Tensor, Tensor] | None  # cosine and sine (B, 1, T, qk_head_dim / 2), with rotary positions
    mask: Tensor | None  # (B, 1, T, S); None where plain attention, or one token against all before it, is right
    cache: KeyValueCache | None
    shared: list[Tensor] | None = None  # probabilities that a layer left for those after it


class CausalSelfAttention(nn.Module):
    """Query, key, value and output are separate modules: a fused projection cannot be frozen in part."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.num_heads, self.num_key_heads = config.num_heads, config.key_heads
        self.is_causal = config.causal
        self.dropout = config.dropout
        size = config.qk_head_dim
        self.query = nn.Linear(config.d_model, self.num_heads * size, bias=False)
        self.key = nn.Linear(config.d_model, self.num_key_heads * size, bias=False)
        if not config.tied_kv:
            self.value = nn.Linear(config.d_model, self.num_key_heads * config.head_dim, bias=False)
        self.output = nn.Linear(config.d_model, config.d_model, bias=False)
        if config.qk_norm:
            self.q_norm, self.k_norm = (nn.RMSNorm(size, eps=NORM_EPS) for _ in range(2))
        self.output_dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        if context.mask is not None:  # what looks at the previous token must find nothing where padding is
            x = x * context.mask[:, 0, -1, -x.shape[1] :, None]
        q, k, v = self._project(x, context)  # (B, H, T, qk_head_dim), (B, key heads, S, qk_head_dim or head_dim)
        if self.num_key_heads < self.num_heads:
            k, v = (x.repeat_interleave(self.num_heads // self.num_key_heads, dim=1) for x in (k, v))
        y = self._attend(q, k, v, context)  # (B, H, T, head_dim)
        return self.output_dropout(self.output(join_heads(y)))

    def weights(self, x: Tensor, context: Context) -> Tensor:
        """What the tokens so far are weighed by (B, H, T, T): attention is linear in its values, so it attends to ones
        that say where they stand. The very code of `forward` runs, whatever a subclass makes of it."""
        q, k, v = self._project(x, context)
        k = k.repeat_interleave(self.num_heads // self.num_key_heads, dim=1)
        places = torch.eye(x.shape[1], dtype=v.dtype, device=v.device).expand(*q.shape[:2], -1, -1)
        return self._attend(q, k, places, context)

    def _project(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of these tokens; keys and values of all tokens so far."""
        cache, rotation = context.cache, context.rotation
        q = split_heads(self.query(x), self.num_heads)
        k, v = (split_heads(project(x), self.num_key_heads) for project in (self.key, self.value))
        q, k = self._normed(q, k)
        if self.config.offset and cache is None:
            k = with_previous(k)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        # Autocast makes values half precision, but not a rotation, an adapter or a projection without a product.
        q, k = q.to(v.dtype), k.to(v.dtype)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
            if self.config.offset:
                q, k = self._one_back(q) if rotation else q, with_previous(k)
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        # One new token against a cache needs no mask at all.
        causal = self.is_causal and context.mask is None and (context.cache is None or q.shape[2] == k.shape[2])
        if causal and blocked_attention_pays(q, v, dropout):
            return causal_attention(q, k, v, dropout)
        scale = q.shape[-1] ** -0.5
        if q.shape[-1] < v.shape[-1] and q.device.type == "cpu":  # torch's fast kernel there wants equal sizes
            q, k = (F.pad(x, (0, v.shape[-1] - x.shape[-1])) for x in (q, k))
        return F.scaled_dot_product_attention(q, k, v, context.mask, dropout, is_causal=causal, scale=scale)

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return (self.q_norm(q.float()), self.k_norm(k.float())) if self.config.qk_norm else (q, k)

    def _one_back(self, q: Tensor) -> Tensor:
        """Queries for cached keys, which were turned by their own token's position, not by the next one's."""
        size = q.shape[-1]
        before = torch.tensor([[-1]], device=q.device)
        cos, sin = rotary_angles(before, size, q.dtype, self.config.rope_theta)
        stays = torch.arange(size // 2, device=q.device) < size // 4
        return rotate(q, (cos.masked_fill(stays, 1.0), sin.masked_fill(stays, 0.0)))

    def attention_flops(self, length: int) -> int:
        """Forward FLOPs per token of the products of queries with keys, and of probabilities with values."""
        seen = (length + 1) / 2 if self.is_causal else length
        return round(2 * seen * (self.num_heads * self.config.qk_head_dim + self.config.d_model))


@torch.no_grad()
def attention_weights(model: nn.Module, input_ids: Tensor) -> list[Tensor]:
    """Every layer's weights (B, H, T, T) while our GPT reads input_ids (B, T); switch the model to `eval()` before."""
    found: list[Tensor] = []
    layers: Any = [module for module in model.modules() if hasattr(module, "attention_flops")]
    keep: Any = lambda module, given: found.append(module.weights(*given))  # noqa: E731
    hooks = [layer.register_forward_pre_hook(keep) for layer in layers]
    try:
        model(input_ids)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, heads · size) → (B, heads, T, size)"""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, heads, T, size) → (B, T, heads · size)"""
    return x.transpose(1, 2).flatten(2)


def rotary_angles(position_ids: Tensor, head_dim: int, dtype: torch.dtype, theta: float = 1e4) -> tuple[Tensor, Tensor]:
    """Cosine and sine (B, 1, T, head_dim / 2) of every position's rotation; recomputed, so no buffer can go stale."""
    exponent = torch.arange(0, head_dim, 2, device=position_ids.device, dtype=torch.float32) / head_dim
    angles = position_ids[:, None, :, None].float() * (theta**-exponent)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn channel i and i + head_dim/2 of every head by the position's angle."""
    cos, sin = rotation
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
