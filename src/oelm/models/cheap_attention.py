"""Other efficient attentions of our GPT, to compare with: each saves what it says, and refuses what makes no sense.

All take (B, T, d_model) to the same, read a `Context`, fill any key–value cache, and count their own FLOPs.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.models.attention import CausalSelfAttention, Context, join_heads, rotary_angles, rotate, split_heads
from oelm.models.kernels import Dropout, blocked_attention_pays, causal_attention, key_blocks, with_previous
from oelm.models.shape import GPTConfig

CHUNK = 64  # tokens that linear attention compares pair by pair; what came before them is one matrix per head


def make_attention(config: GPTConfig, layer: int) -> nn.Module:
    """The attention of one layer, as the config says."""
    if config.attention in ("synthesizer", "mixing"):
        return PositionMixing(config, layer)
    if config.attention == "linear":
        return FeatureMapAttention(config, layer)
    if config.share > 1:
        return SharingAttention(config, layer) if layer % config.share == 0 else SharedMixing(config, layer)
    if config.window:
        return WindowAttention(config, layer)
    return (TiedAttention if config.tied_kv else CausalSelfAttention)(config, layer)


class WindowAttention(CausalSelfAttention):
    """Every token sees itself and the window − 1 tokens before it. A cache keeps all, but only those are read."""

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        window, (length, seen) = self.config.window or 0, (q.shape[2], k.shape[2])
        dropout = self.dropout if self.training else 0.0
        if context.mask is None and length == seen > window:
            if blocked_attention_pays(q, v, dropout):
                return causal_attention(q, k, v, dropout, window)
            return windowed_attention(q, k, v, window, dropout)
        if context.mask is None and length == 1:
            return F.scaled_dot_product_attention(q, k[:, :, -window:], v[:, :, -window:])
        if context.mask is None:
            return super()._attend(q, k, v, context)
        recent = torch.ones(length, seen, dtype=torch.bool, device=q.device).triu(seen - length - window + 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=context.mask & recent, dropout_p=dropout)

    def attention_flops(self, length: int) -> int:
        window = min(self.config.window or length, length)
        seen = (window * (window + 1) / 2 + (length - window) * window) / length
        return round(2 * seen * (self.num_heads * self.config.qk_head_dim + self.config.d_model))


def windowed_attention(q: Tensor, k: Tensor, v: Tensor, window: int, dropout: float = 0.0) -> Tensor:
    """(B, H, T, d) in chunks of one window, each with the keys of its own chunk and the one before: T · 2 window."""
    batch, heads, length = q.shape[:3]
    chunks = -(-length // window)
    rest = chunks * window - length
    q, k, v = (F.pad(x, (0, 0, 0, rest)).flatten(0, 1).unflatten(1, (chunks, window)) for x in (q, k, v))
    k, v = (torch.cat((F.pad(x, (0, 0, 0, 0, 1, 0))[:, :-1], x), dim=2) for x in (k, v))  # (B·H, n, 2 window, d)
    row = torch.arange(window, device=q.device)[:, None]
    column = torch.arange(2 * window, device=q.device)
    near = ((column > row) & (column <= row + window)).expand(chunks, -1, -1)  # (n, window, 2 window)
    first = (torch.arange(chunks, device=q.device) == 0)[:, None, None]
    near = near & ~(first & (column < window))  # nothing comes before the first chunk
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=near, dropout_p=dropout)
    return y.flatten(1, 2)[:, :length].unflatten(0, (batch, heads))


class TiedAttention(CausalSelfAttention):
    """Keys are values as well: one projection less, and half a cache, which holds them before norm and rotation."""

    refuses: ClassVar[Mapping[str, str]] = {"key": "its keys are its values, too, and those must train"}

    def _project(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        q, v = split_heads(self.query(x), self.num_heads), split_heads(self.key(x), self.num_key_heads)
        v = cached_values(v, context, self.layer)
        q, k = self._normed(q, v)
        k = with_previous(k) if self.config.offset else k
        q, k = turned(q, k, context, self.config)
        return q.to(v.dtype), k.to(v.dtype), v


class FeatureMapAttention(CausalSelfAttention):
    """Linear attention: elu + 1 of queries and keys instead of a softmax, so that the past is one matrix per head.

    With rotary positions the weighted sum is turned, its normaliser is not. A cache holds keys and values as they
    were projected: generation costs what ordinary attention costs.
    """

    def _project(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        q = split_heads(self.query(x), self.num_heads)
        k, v = (split_heads(project(x), self.num_key_heads) for project in (self.key, self.value))
        if context.cache is not None:
            k, v = context.cache.update(k, v, self.layer)
        q, k = self._normed(q, k)
        return q, with_previous(k) if self.config.offset else k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        turned_q, turned_k = turned(q, k, context, self.config)
        if context.mask is None and q.shape[2] == k.shape[2]:
            total = (q * k.cumsum(dim=2)).sum(dim=-1, keepdim=True)
            return (causal_linear_attention(turned_q, turned_k, v) / total).to(v.dtype)
        # Few tokens against a cache, or padding, which elu + 1 does not make nothing: pair by pair.
        mask = 1.0 if context.mask is None else context.mask
        total = ((q @ k.mT) * mask).sum(dim=-1, keepdim=True)
        return (((turned_q @ turned_k.mT) * mask).to(v.dtype) @ v / total).to(v.dtype)

    def attention_flops(self, length: int) -> int:
        inside, size, wide = (min(CHUNK, length) + 1) / 2, self.config.qk_head_dim, self.config.head_dim
        return round(self.num_heads * (2 * inside * (size + wide) + 4 * size * wide))


def causal_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Σ_{j ≤ i} (q_i · k_j) v_j for (B, H, T, d), in chunks: pair by pair within one, by their sum before it."""
    length = q.shape[2]
    chunks = -(-length // CHUNK)
    q, k, v = (F.pad(x, (0, 0, 0, chunks * CHUNK - length)).unflatten(2, (chunks, CHUNK)) for x in (q, k, v))
    before = F.pad((k.mT @ v).cumsum(dim=2), (0, 0, 0, 0, 1, 0))[:, :, :-1]  # (B, H, n, qk_head_dim, head_dim)
    y = (q @ k.mT).tril() @ v + q @ before
    return y.flatten(2, 3)[:, :, :length]


class SharingAttention(CausalSelfAttention):
    """Ordinary attention that leaves its probabilities for the layers after it."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.probability_dropout = Dropout(config.dropout)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        context.shared = probabilities(q, k, context.mask)
        return weighted(context.shared, v, self.probability_dropout)


class SharedMixing(nn.Module):
    """Attention with the probabilities of an earlier layer: it has values, but neither queries nor keys."""

    has_queries = False

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.value = nn.Linear(config.d_model, config.key_heads * config.head_dim, bias=False)
        self.output = nn.Linear(config.d_model, config.d_model, bias=False)
        self.probability_dropout, self.output_dropout = Dropout(config.dropout), Dropout(config.dropout)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        v = cached_values(split_heads(self.value(x), self.config.key_heads), context, self.layer)
        v = v.repeat_interleave(self.config.num_heads // self.config.key_heads, dim=1)
        assert context.shared is not None  # an earlier layer left it
        y = weighted(context.shared, v, self.probability_dropout)
        return self.output_dropout(self.output(join_heads(y)))

    def weights(self, x: Tensor, context: Context) -> Tensor:
        """As `CausalSelfAttention.weights`."""
        assert context.shared is not None
        return torch.cat([F.pad(block, (0, x.shape[1] - block.shape[-1])) for block in context.shared], dim=2)

    def attention_flops(self, length: int) -> int:
        return (length + 1) * self.config.d_model


def probabilities(q: Tensor, k: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Softmax of the scores, in blocks of queries, each with the keys up to its last one (B, H, t, end)."""
    length, blocks = q.shape[2], []
    plain = mask is None and length == k.shape[2]
    for _, start, end in key_blocks(length) if plain else [(0, 0, length)]:
        scores = q[:, :, start:end] @ k[:, :, : end if plain else None].mT / math.sqrt(q.shape[-1])
        if plain:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(start + 1)
            scores = scores.masked_fill(future, -math.inf)
        elif mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        blocks.append(scores.softmax(dim=-1))
    return blocks


def weighted(blocks: list[Tensor], v: Tensor, dropout: nn.Module) -> Tensor:
    return torch.cat([dropout(block).to(v.dtype) @ v[:, :, : block.shape[-1]] for block in blocks], dim=2)


class PositionMixing(SharedMixing):
    """What a token reads depends on positions only: on learned scores (random Synthesizer), or on nothing (MixiT).

    A Synthesizer learns a score for every pair of positions and head, and takes their softmax. MixiT's matrix is fixed:
    the token itself, plus random weights of the tokens so far that add up to 0.
    """

    table: Tensor  # (H, max_seq_len, max_seq_len)

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.learned = config.attention == "synthesizer"
        table = torch.randn(config.num_heads, config.max_seq_len, config.max_seq_len)
        if self.learned:
            self.table = nn.Parameter(table)
        else:
            self.register_buffer("table", _centred(table))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        v = cached_values(split_heads(self.value(x), self.config.num_heads), context, self.layer)
        length, (batch, _, seen, size) = x.shape[1], v.shape
        if context.mask is None and length == seen:
            table = self._weights(self.table[:, :length, :length], None).to(v.dtype)  # one for the whole batch
            folded = v.permute(1, 2, 0, 3).flatten(2)  # (H, T, B · head_dim)
            y = torch.cat([table[:, i:j, :j] @ folded[:, :j] for _, i, j in key_blocks(length)], dim=1)
            y = y.unflatten(2, (batch, size)).permute(2, 0, 1, 3)
        else:
            at = context.positions.expand(batch, -1).clamp(min=0), key_positions(context, seen).expand(batch, -1)
            chosen = self.table[:, at[0][:, :, None], at[1].clamp(min=0)[:, None, :]].transpose(0, 1)  # (B, H, T, S)
            y = self._weights(chosen, context.mask).to(v.dtype) @ v
        return self.output_dropout(self.output(join_heads(y)))

    def weights(self, x: Tensor, context: Context) -> Tensor:
        """As `CausalSelfAttention.weights`; MixiT's may be negative."""
        table = self.table[:, : x.shape[1], : x.shape[1]]
        return self._weights(table, context.mask).expand(x.shape[0], -1, -1, -1)

    def _weights(self, table: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:  # a lower triangle, or one row of it
            mask = torch.ones(table.shape[-2:], dtype=torch.bool, device=table.device)
            mask = mask.tril(table.shape[-1] - table.shape[-2])
        return table.masked_fill(~mask, -math.inf).softmax(dim=-1) if self.learned else table * mask


def _centred(noise: Tensor) -> Tensor:
    """Identity plus rows of noise over the positions so far, of zero sum and unit length."""
    noise = noise.tril()
    count = torch.arange(1, noise.shape[-1] + 1)[:, None]
    noise = ((noise - noise.sum(dim=-1, keepdim=True) / count) / count.sqrt()).tril()
    return noise + torch.eye(noise.shape[-1])


def cached_values(v: Tensor, context: Context, layer: int) -> Tensor:
    """All values so far, of attention that keeps nothing else: they take the keys' place in a cache."""
    return v if context.cache is None else context.cache.update(v, v[..., :0], layer)[0]


def key_positions(context: Context, seen: int) -> Tensor:
    """Positions (B, S) of all tokens so far: they follow each other up to the last one's; padding has any."""
    return context.positions[:, -1:] + torch.arange(1 - seen, 1, device=context.positions.device)


def turned(q: Tensor, k: Tensor, context: Context, config: GPTConfig) -> tuple[Tensor, Tensor]:
    """Queries and all keys so far, each rotated by its own position."""
    if context.rotation is None:
        return q, k
    angles = context.rotation
    if q.shape[2] < k.shape[2]:
        angles = rotary_angles(key_positions(context, k.shape[2]), k.shape[-1], q.dtype, config.rope_theta)
    return rotate(q, context.rotation), rotate(k, angles)
