"""Two computations that take less memory or time than torch's own: the loss over a vocabulary, attention on a CPU.

Both are plain autograd functions over torch's matrix products; `oelm.models.gpt` decides where they are used.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ATTENTION_BLOCK = 128
"""Queries that share one product with all keys before them: the upper triangle is skipped in steps of this size."""
LOSS_CHUNK_ELEMENTS = 1 << 20
"""Logits that exist at a time (4 MB in float32): they stay in the cache between the product and the softmax."""


def vocabulary_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of `hidden @ weight.T` (N, d) against targets (N,), without ever holding all logits.

    Every chunk's gradients are taken while its logits exist, so nothing is computed twice.

    >>> hidden, weight, targets = torch.randn(8, 4), torch.randn(16, 4), torch.arange(8)
    >>> expected = F.cross_entropy(hidden @ weight.T, targets)
    >>> torch.testing.assert_close(vocabulary_loss(hidden, weight, targets), expected)
    """
    return _VocabularyLoss.apply(hidden, weight, targets)


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        nats = hidden.new_zeros((), dtype=torch.float64)
        rows = max(1, LOSS_CHUNK_ELEMENTS // weight.shape[0])
        for start in range(0, hidden.shape[0], rows):
            part, wanted = hidden[start : start + rows], targets[start : start + rows, None]
            logits = F.linear(part, weight)
            log_probabilities = F.log_softmax(logits, dim=-1, dtype=torch.float32)
            nats -= log_probabilities.gather(1, wanted).sum(dtype=torch.float64)
            if not (wants_hidden or wants_weight):
                continue
            # d nats / d logits = probabilities − one-hot. Divided by N only at the end: half precision would lose it.
            slope = log_probabilities.exp_()
            slope.scatter_add_(1, wanted, slope.new_full(wanted.shape, -1.0))
            slope = slope.to(logits.dtype)
            if grad_hidden is not None:
                grad_hidden[start : start + rows] = slope @ weight.to(slope.dtype)
            if grad_weight is not None:
                if slope.dtype == weight.dtype:
                    grad_weight.addmm_(slope.T, part)
                else:
                    grad_weight += slope.T @ part.to(slope.dtype)
        ctx.count = hidden.shape[0]
        ctx.save_for_backward(grad_hidden, grad_weight)
        return (nats / ctx.count).float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        scale = grad / ctx.count
        grad_hidden, grad_weight = (None if g is None else g * scale for g in ctx.saved_tensors)
        return grad_hidden, grad_weight, None


def blocked_attention_pays(q: Tensor) -> bool:
    """Where `causal_attention` is the faster one: training in float32 on a CPU, over more than one block of queries."""
    return (
        q.requires_grad
        and q.device.type == "cpu"
        and q.dtype == torch.float32
        and q.shape[2] > ATTENTION_BLOCK
        and not torch.compiler.is_compiling()
    )


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kᵀ / √d, causal) v for (B, H, T, d) tensors, in blocks of queries, keeping the probabilities.

    Backward takes a bit more than half the time of torch's CPU kernel, which computes the probabilities a second time.
    """
    return _CausalAttention.apply(q, k, v)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, length, size = q.shape
        q, k, v = (x.reshape(-1, length, size) for x in (q, k, v))  # (B·H, T, d)
        # The output is laid out as (B, T, H, d), so that joining the heads afterwards is free.
        output = q.new_empty(batch, length, heads, size).transpose(1, 2)
        future = torch.full((ATTENTION_BLOCK, ATTENTION_BLOCK), -math.inf).triu(1)
        kept = []
        for start in range(0, length, ATTENTION_BLOCK):
            end = min(start + ATTENTION_BLOCK, length)
            scores = q.new_empty(q.shape[0], end - start, end)
            scores.baddbmm_(q[:, start:end], k[:, :end].mT, beta=0, alpha=1 / math.sqrt(size))
            scores[:, :, start:].add_(future[: end - start, : end - start])
            probabilities = torch.softmax(scores, dim=-1, out=scores)
            output[:, :, start:end] = torch.bmm(probabilities, v[:, :end]).view(batch, heads, end - start, size)
            kept.append(probabilities)
        ctx.save_for_backward(q, k, v, *kept)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, *kept = ctx.saved_tensors
        shape, (_, length, size) = grad.shape, q.shape
        grad, scale = grad.reshape(-1, length, size), 1 / math.sqrt(size)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for index, start in enumerate(range(0, length, ATTENTION_BLOCK)):
            end = min(start + ATTENTION_BLOCK, length)
            probabilities, part = kept[index], grad[:, start:end]
            grad_v[:, :end].baddbmm_(probabilities.mT, part)
            slope = torch.bmm(part, v[:, :end].mT)
            slope = torch._softmax_backward_data(slope, probabilities, -1, torch.float32)
            grad_q[:, start:end].baddbmm_(slope, k[:, :end], beta=0, alpha=scale)
            grad_k[:, :end].baddbmm_(slope.mT, q[:, start:end], alpha=scale)
        return grad_q.view(shape), grad_k.view(shape), grad_v.view(shape)
