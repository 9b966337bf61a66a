"""What this machine can do at best, measured here and now: matrix products.

A training step is bound by its FLOPs at the speed of repeated products. Products that find their operands in main
memory, not in a warm cache, do not reach it themselves: medium-512's took 1.43 times as long (results/bench-cpu).
"""

from collections.abc import Iterable
from typing import Any

import torch

from oelm.training.timing import now

Shape = tuple[int, int, int]
SQUARES = (512, 1024, 2048)
SECONDS_PER_SHAPE = 0.3
MINIMUM_REPEATS = 3


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
        start = now(device)
        torch.mm(a, b, out=out)
        seconds = now(device) - start
        best, spent, repeats = min(best, seconds), spent + seconds, repeats + 1
    return 2 * rows * columns * inner / best
