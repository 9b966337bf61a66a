"""Matmul FLOPs of a training step, counting what is really computed. Pure arithmetic: the dashboard needs no torch.

A weight of n entries costs 2n FLOPs per token forward, 2n backward for the gradient of its input, and 2n more for its
own gradient, which a frozen weight does not have. Attention's two products cost 4·context·width per token and layer
forward (queries with keys, weights with values) and twice that backward; in causal attention the mean context is half
the sequence. Kernels that recompute the forward pass inside the backward pass do more than this.

>>> block = [Matmul("qk", 2 * 512**2, trained=False), Matmul("rest", 10 * 512**2)]
>>> trained = [Matmul("qk", 2 * 512**2), Matmul("rest", 10 * 512**2)]
>>> round(1 - count(block).step / count(trained).step, 4)  # the most that freezing queries and keys can save
0.0556
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

BLOCK_MATRICES = ("qk", "vo", "ffn")


@dataclass(frozen=True)
class Matmul:
    """One weight matrix that every token passes through."""

    group: str
    weights: int
    trained: float = True  # whether it has a gradient of its own, or at which share of the steps


@dataclass(frozen=True)
class Flops:
    """FLOPs per token, by group."""

    forward: dict[str, int]
    backward: dict[str, int]
    recomputed: int = 0  # of the forward pass, what gradient checkpointing computes a second time

    @property
    def step(self) -> int:
        return sum(self.forward.values()) + sum(self.backward.values()) + self.recomputed

    def with_checkpointing(self) -> "Flops":
        """The blocks are computed twice; the head is not in them."""
        return replace(self, recomputed=sum(n for group, n in self.forward.items() if group != "head"))

    @property
    def blocks(self) -> int:
        """Of a step's FLOPs, those of the blocks' own matrices: neither the head's nor attention's products."""
        return sum(part.get(group, 0) for part in (self.forward, self.backward) for group in BLOCK_MATRICES)

    def to_dict(self) -> dict[str, Any]:
        return {
            "forward": {**self.forward, "total": sum(self.forward.values())},
            "backward": {**self.backward, "total": sum(self.backward.values())},
            "step": self.step,
        } | ({"recomputed": self.recomputed} if self.recomputed else {})


def count(matmuls: Iterable[Matmul], attention_forward: int = 0) -> Flops:
    """Add up the matmuls of a model; `attention_forward` is `attention_flops` of all its layers."""
    forward: dict[str, int] = {}
    backward: dict[str, int] = {}
    for matmul in matmuls:
        once = 2 * matmul.weights
        forward[matmul.group] = forward.get(matmul.group, 0) + once
        backward[matmul.group] = backward.get(matmul.group, 0) + round((1 + matmul.trained) * once)
    if attention_forward:
        forward["attention"] = attention_forward
        backward["attention"] = 2 * attention_forward
    return Flops(forward, backward)


def attention_flops(width: int, sequence_length: int, causal: bool) -> int:
    """Forward FLOPs per token of one layer's two attention products."""
    context = (sequence_length + 1) / 2 if causal else sequence_length
    return round(4 * context * width)
