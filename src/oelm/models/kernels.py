"""What takes less memory or time than torch's own: the loss over a vocabulary; on a CPU also attention and dropout.

All are plain autograd functions over torch's operations; `oelm.models.gpt` decides where they are used.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ATTENTION_BLOCK = 128  # queries that share a product with all keys before them; so the upper triangle is skipped
LOSS_CHUNK_ROWS = 512
"""Tokens whose logits exist at a time. With fewer, reading and writing the vocabulary's gradient for every chunk takes
longer than the products do: at 50,257 tokens 1.9 times as long as all logits at once with 20 rows, 0.8 with 512."""


def vocabulary_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of `hidden @ weight.T` (N, d) against targets (N,), without ever holding all logits.

    Every chunk's gradients are taken while its logits exist, so nothing is computed twice. Targets below 0 (by custom
    −100) are not counted; the mean of none is 0.

    >>> hidden, weight, targets = torch.randn(8, 4), torch.randn(16, 4), torch.arange(8)
    >>> expected = F.cross_entropy(hidden @ weight.T, targets)
    >>> torch.testing.assert_close(vocabulary_loss(hidden, weight, targets), expected)
    """
    if not torch.is_grad_enabled():  # which a function of our own is not told
        hidden, weight = hidden.detach(), weight.detach()
    return _VocabularyLoss.apply(hidden, weight, targets)


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        nats = hidden.new_zeros((), dtype=torch.float64)
        for start in range(0, hidden.shape[0], LOSS_CHUNK_ROWS):
            rows = slice(start, start + LOSS_CHUNK_ROWS)
            into = None if grad_hidden is None else grad_hidden[rows]
            nats += _loss_of_chunk(hidden[rows], weight, targets[rows, None], into, grad_weight)
        count = (targets >= 0).sum().clamp(min=1)
        ctx.save_for_backward(count, grad_hidden, grad_weight)
        return (nats / count).float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        count, *gradients = ctx.saved_tensors
        scale = grad / count
        grad_hidden, grad_weight = (None if g is None else g * scale for g in gradients)
        return grad_hidden, grad_weight, None


def _loss_of_chunk(
    hidden: Tensor, weight: Tensor, wanted: Tensor, grad_hidden: Tensor | None, grad_weight: Tensor | None
) -> Tensor:
    """The sum of some tokens' losses; their gradients are written to, or added to, what is given for them."""
    ignored, wanted = wanted < 0, wanted.clamp(min=0)
    hidden = hidden.masked_fill(ignored, 0)
    logits = F.linear(hidden, weight)
    log_probabilities = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    nats = -log_probabilities.gather(1, wanted).masked_fill(ignored, 0).sum(dtype=torch.float64)
    if grad_hidden is None and grad_weight is None:
        return nats
    # d nats / d logits = probabilities − one-hot. Divided by N only at the end: half precision would lose it.
    slope = log_probabilities.exp_()
    slope.scatter_add_(1, wanted, slope.new_full(wanted.shape, -1.0))
    slope = slope.to(logits.dtype)
    if grad_hidden is not None:
        grad_hidden.copy_((slope @ weight.to(slope.dtype)).masked_fill(ignored, 0))
    if grad_weight is not None:  # to which ignored rows add nothing, being 0 by now
        if slope.dtype == weight.dtype:
            grad_weight.addmm_(slope.T, hidden)
        else:
            grad_weight += slope.T @ hidden.to(slope.dtype)
    return nats


def blocked_attention_pays(q: Tensor, v: Tensor, dropout: float) -> bool:
    """Where `causal_attention` is the faster one: training in float32 on a CPU, with dropout or many queries, or with
    values of another size than queries, for which torch has no fast kernel there.

    Keys and values must have the queries' dtype. Autocast would change it midway, where products are written in place.
    """
    return (
        q.requires_grad
        and q.device.type == "cpu"
        and q.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and (q.shape[2] > ATTENTION_BLOCK or dropout > 0 or q.shape[-1] != v.shape[-1])
        and not torch.compiler.is_compiling()
    )


def causal_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, window: int | None = None) -> Tensor:
    """softmax(q kᵀ / √d, causal) v for (B, H, T, d) tensors, in blocks of queries, keeping the probabilities.

    With a window a token sees that many tokens, itself included, and a block only the keys that one of its tokens sees.

    Backward takes a bit more than half the time of torch's CPU kernel, which computes the probabilities a second time
    and knows no dropout.
    """
    return _CausalAttention.apply(q, k, v, dropout, window)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float, window: int | None) -> Tensor:
        batch, heads, length, size = q.shape
        keep, scale = _keep_share(dropout) if dropout else 1.0, 1 / math.sqrt(size)
        wide = v.shape[-1]  # values may be wider than queries and keys
        q, k, v = (x.reshape(-1, length, x.shape[-1]) for x in (q, k, v))  # (B·H, T, d)
        # The output is laid out as (B, T, H, d), so that joining the heads afterwards is free.
        output = q.new_empty(batch, length, heads, wide).transpose(1, 2)
        square = torch.full((ATTENTION_BLOCK, ATTENTION_BLOCK), -math.inf)
        future = square.triu(1)
        kept, masks, ctx.blocks = [], [], key_blocks(length, window)
        for first, start, end in ctx.blocks:
            rows = end - start
            scores = q.new_empty(q.shape[0], rows, end - first)
            scores.baddbmm_(q[:, start:end], k[:, first:end].mT, beta=0, alpha=scale)
            scores[:, :, start - first :].add_(future[:rows, :rows])
            if window and end > window:  # what the earlier tokens of the block see, the later ones see no more
                past = square.tril(start - window - first)[:rows, : end - first]
                scores[:, :, : past.shape[1]].add_(past)
            probabilities = torch.softmax(scores, dim=-1, out=scores)
            kept.append(probabilities)
            if dropout:
                masks.append(_keep_mask(probabilities.shape, keep))
                probabilities = probabilities * masks[-1]
            part = q.new_empty(q.shape[0], rows, wide)
            part.baddbmm_(probabilities, v[:, first:end], beta=0, alpha=1 / keep)
            output[:, :, start:end] = part.view(batch, heads, rows, wide)
        ctx.keep = keep
        ctx.save_for_backward(q, k, v, *kept, *masks)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, *saved = ctx.saved_tensors
        heads, (_, length, size) = grad.shape[:2], q.shape
        grad, scale = grad.reshape(-1, length, v.shape[-1]), 1 / (ctx.keep * math.sqrt(size))
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        kept, masks = saved[: len(ctx.blocks)], saved[len(ctx.blocks) :]
        for index, (first, start, end) in enumerate(ctx.blocks):
            probabilities, part = kept[index], grad[:, start:end]
            used = probabilities * masks[index] if masks else probabilities
            grad_v[:, first:end].baddbmm_(used.mT, part, alpha=1 / ctx.keep)
            slope = torch.bmm(part, v[:, first:end].mT)
            if masks:
                slope.mul_(masks[index])
            slope = torch._softmax_backward_data(slope, probabilities, -1, torch.float32)
            grad_q[:, start:end].baddbmm_(slope, k[:, first:end], beta=0, alpha=scale)
            grad_k[:, first:end].baddbmm_(slope.mT, q[:, start:end], alpha=scale)
        return grad_q.unflatten(0, heads), grad_k.unflatten(0, heads), grad_v.unflatten(0, heads), None, None


def key_blocks(length: int, window: int | None = None) -> list[tuple[int, int, int]]:
    """Blocks of queries (start, end), each with the first key that one of them sees."""
    step = ATTENTION_BLOCK if window is None else min(ATTENTION_BLOCK, max(window, ATTENTION_BLOCK // 4))
    starts = range(0, length, step)
    return [(0 if window is None else max(0, s - window + 1), s, min(s + step, length)) for s in starts]


def with_previous(k: Tensor) -> Tensor:
    """Keys (B, H, T, d) whose channels d/4…d/2 and 3d/4…d are the previous token's; before the first there is nothing.

    That is half of each rotary half, so that the two channels of a rotary pair stay together.

    >>> with_previous(torch.arange(1.0, 9.0).view(1, 1, 2, 4)).tolist()
    [[[[1.0, 0.0, 3.0, 0.0], [5.0, 2.0, 7.0, 4.0]]]]
    """
    return _WithPrevious.apply(k)


class _WithPrevious(torch.autograd.Function):
    """Written by hand, because torch's own padding and joining takes seven times as long, most of it backward."""

    @staticmethod
    def forward(ctx: Any, k: Tensor) -> Tensor:
        return _moved(k, slice(1, None), slice(None, -1), 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _moved(grad, slice(None, -1), slice(1, None), -1)


def _moved(x: Tensor, into: slice, out_of: slice, empty: int) -> Tensor:
    result = torch.empty_like(x)
    quarters, theirs = result.unflatten(-1, (2, 2, -1)), x.unflatten(-1, (2, 2, -1))  # rotary half, stays or moves
    quarters[..., 0, :] = theirs[..., 0, :]
    quarters[:, :, into, :, 1] = theirs[:, :, out_of, :, 1]
    quarters[:, :, empty, :, 1] = 0
    return result


class Dropout(nn.Dropout):
    """torch's dropout, except that on a CPU the random numbers are drawn sixteen bits at a time.

    torch draws a number of its own for every element, in one thread: where its MKL path is not taken, that is seven
    nanoseconds each, more than all other element-wise work of a training step together.
    """

    def forward(self, input: Tensor) -> Tensor:
        inactive = not self.training or self.p in (0.0, 1.0)
        if inactive or input.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(input)
        keep = _keep_share(self.p)
        return (input / keep) * _keep_mask(input.shape, keep)


def _keep_share(dropout: float) -> float:
    """1 − dropout, in the steps of 2⁻¹⁶ that sixteen random bits allow; never none, never all."""
    return min(max(round((1 - dropout) * 2**16), 1), 2**16 - 1) / 2**16


def _keep_mask(shape: torch.Size, keep: float) -> Tensor:
    """True with probability `keep`, from the default generator; on a CPU."""
    count = math.prod(shape)
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    return (bits[:count] < int(keep * 2**16) - 2**15).view(shape)
