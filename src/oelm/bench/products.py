"""The matrix products of a training step, and nothing else: what no step of this shape can beat on this machine.

FLOPs ÷ matmul peak is a bound that the products themselves do not reach: they find their operands in main memory, not
in a cache that a repeated product has warmed. Here they run in the order of a step, on tensors of their own, into
memory that is there already: no softmax, no normalisation, no activation function, no optimizer.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from oelm.models.kernels import ATTENTION_BLOCK
from oelm.models.shape import GPTConfig

Pass = Callable[[], None]


def products(config: GPTConfig, batch: int, length: int, device: torch.device) -> tuple[Pass, Pass]:
    """The products of a forward and of a backward pass of our baseline."""
    width, wide = config.d_model, config.d_ff
    shapes = [[(3 * width, width), (width, width), (wide, width), (width, wide)]] * config.num_layers
    layers = [[_Linear(*shape, batch * length, device) for shape in layer] for layer in shapes]
    heads = [_Attention(batch * config.num_heads, length, width // config.num_heads, device) for _ in layers]
    head = _Linear(config.vocab_size, width, batch * length, device)

    @torch.no_grad()
    def forward() -> None:
        for layer, attention in zip(layers, heads, strict=True):
            for linear in layer:
                linear.forward()
            attention.forward()
        head.forward()

    @torch.no_grad()
    def backward() -> None:
        head.backward()
        for layer, attention in zip(reversed(layers), reversed(heads), strict=True):
            for linear in reversed(layer):
                linear.backward()
            attention.backward()

    return forward, backward


class _Linear:
    """A layer's weight, input and output, and memory for their gradients; the output stands in for its own."""

    def __init__(self, outputs: int, inputs: int, tokens: int, device: torch.device) -> None:
        self.weight = torch.randn(outputs, inputs, device=device)
        self.x, self.y = torch.randn(tokens, inputs, device=device), torch.empty(tokens, outputs, device=device)
        self.weight_gradient, self.x_gradient = torch.empty_like(self.weight), torch.empty_like(self.x)

    def forward(self) -> None:
        torch.mm(self.x, self.weight.T, out=self.y)

    def backward(self) -> None:
        torch.mm(self.y.T, self.x, out=self.weight_gradient)
        torch.mm(self.y, self.weight, out=self.x_gradient)


class _Attention:
    """Blocks of queries with all keys up to theirs, as our kernel has them."""

    def __init__(self, heads: int, length: int, size: int, device: torch.device) -> None:
        self.q, self.k, self.v = (torch.randn(heads, length, size, device=device) for _ in range(3))
        self.into = torch.empty(heads, length, size, device=device)
        self.blocks = list(pairwise([*range(0, length, ATTENTION_BLOCK), length]))
        self.scores = [torch.randn(heads, end - start, end, device=device) for start, end in self.blocks]

    def forward(self) -> None:
        for (start, end), scores in zip(self.blocks, self.scores, strict=True):
            torch.bmm(self.q[:, start:end], self.k[:, :end].mT, out=scores)
            self._multiply(scores, self.v[:, :end], start)

    def backward(self) -> None:
        for (start, end), scores in zip(self.blocks, self.scores, strict=True):
            self._multiply(scores.mT, self.q[:, start:end], 0)  # values
            torch.bmm(self.q[:, start:end], self.v[:, :end].mT, out=scores)  # probabilities
            self._multiply(scores, self.k[:, :end], start)  # queries
            self._multiply(scores.mT, self.q[:, start:end], 0)  # keys

    def _multiply(self, left: Tensor, right: Tensor, start: int) -> None:
        torch.bmm(left, right, out=self.into[:, start : start + left.shape[1]])
