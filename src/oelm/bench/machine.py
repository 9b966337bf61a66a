"""What this machine can do at best, measured here and now: matrix products, and copies in memory.

A training step is bound by its FLOPs at the speed of repeated products; how far above that bound it is says what is
left to gain. The products of a step do not reach that bound themselves: they find their operands in main memory, not in
a cache that a repeated product has warmed. `products` runs them in the order of a step, on tensors of their own, into
memory that is there already, with no softmax, normalisation, activation function or optimizer: no step can beat it.
"""

import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from oelm.models.gpt import GPTConfig
from oelm.models.kernels import ATTENTION_BLOCK

Pass = Callable[[], None]
Shape = tuple[int, int, int]
SQUARES = (512, 1024, 2048)
SECONDS_PER_SHAPE = 0.3
MINIMUM_REPEATS = 3
_COPIED_FLOATS = 1 << 24


def gemm_shapes(tokens: int, d_model: int, d_ff: int, vocab_size: int) -> list[Shape]:
    """Squares, and the products that a model of this shape is made of: (rows, columns, inner)."""
    own = [(tokens, d_model, d_model), (tokens, d_ff, d_model), (tokens, d_model, d_ff), (tokens, vocab_size, d_model)]
    return [*((n, n, n) for n in SQUARES), *dict.fromkeys((min(m, 4096), min(n, 8192), k) for m, n, k in own)]


def gemm_speeds(shapes: Iterable[Shape], device: torch.device) -> list[dict[str, Any]]:
    """FLOP/s of float32 products of every shape; of several repeats the fastest, which nothing disturbed."""
    return [{"shape": list(shape), "flops_per_second": _speed(shape, device)} for shape in shapes]


def best_speeds(*measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shape by shape the best of several measurements of the same shapes, e.g. before and after the steps."""
    return [max(rows, key=lambda row: row["flops_per_second"]) for rows in zip(*measurements, strict=True)]


def _speed(shape: Shape, device: torch.device) -> float:
    rows, columns, inner = shape
    a, b = torch.randn(rows, inner, device=device), torch.randn(inner, columns, device=device)
    out = torch.empty(rows, columns, device=device)
    torch.mm(a, b, out=out)
    best, spent, repeats = float("inf"), 0.0, 0
    while spent < SECONDS_PER_SHAPE or repeats < MINIMUM_REPEATS:
        start = _now(device)
        torch.mm(a, b, out=out)
        seconds = _now(device) - start
        best, spent, repeats = min(best, seconds), spent + seconds, repeats + 1
    return 2 * rows * columns * inner / best


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def copy_bandwidth() -> float:
    """Bytes read and written per second by the fastest of a few large copies."""
    source, target = torch.ones(_COPIED_FLOATS), torch.empty(_COPIED_FLOATS)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return 2 * 4 * _COPIED_FLOATS / best


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
