"""Training step of our GPT against Hugging Face GPT-2 of the same shape, and of the frozen arm against our baseline.

    python benchmarks/step_time.py [--rounds 12] [--dropout 0.1] [--keep-freed] [--json]
    python benchmarks/step_time.py --yardstick      # what a plain GPT without dropout takes of GPT-2's step

The measurement is that of `oelm bench`: one process, interleaved A-B-C-C-B-A, float32, SDPA on both sides, AdamW,
clipping at 1. GPT-2 is as its users have it: with its default dropout of 0.1, which our arms then have as well, and the
C library's own way with freed memory. Peak memory is measured in a process of its own for each arm, several times
over: where freed memory leaves holes differs from one process to the next, by some percent.
"""

import argparse
import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from peak_memory import prediction

from oelm.bench.arms import build_arm
from oelm.bench.footprint import measure
from oelm.bench.interleaved import interleave, ratio
from oelm.bench.protocol import Shape, bench
from oelm.training.environment import keep_freed_memory

SHAPE = Shape("medium-512", batch=4, length=512, vocab=4096, dropout=0.1)
OURS_LIMIT, FROZEN_MARGIN, MEMORY_ROUNDS = 0.75, 0.02, 6
ARMS = ("gpt2", "gpt2_fused", "plain", "baseline", "oelm_freeze")
"""GPT-2 with AdamW as torch gives it by default, and with the fused AdamW that our trainer uses; a GPT of torch's own
parts, which says what can be had on this machine without any effort of ours."""


YARDSTICK = (("gpt2", 0.1), ("gpt2", 0.0), ("plain", 0.1), ("plain", 0.0), ("baseline", 0.1), ("baseline", 0.0))
"""Arms and their dropout."""


def yardstick(rounds: int, keep_freed: bool) -> dict[str, Any]:
    """Every arm with and without dropout, as ratios to GPT-2 with it, and to GPT-2 without it."""
    if keep_freed:
        keep_freed_memory()
    steps = {}
    for arm, dropout in YARDSTICK:
        shape = replace(SHAPE, dropout=dropout)
        built = build_arm(arm, shape.model(), shape.settings(), device=torch.device("cpu"))
        steps[f"{arm}, dropout {dropout:g}"] = built.step
    seconds = interleave(steps, rounds=rounds)
    references = ("gpt2, dropout 0.1", "gpt2, dropout 0")
    return {f"{arm} / {gpt2}": ratio(seconds[arm], seconds[gpt2]) for gpt2 in references for arm in seconds}


def facts(rounds: int, shape: Shape, keep_freed: bool) -> dict[str, Any]:
    timed = bench(ARMS, shape, rounds=rounds, keep_freed=keep_freed)
    arms = timed["arms"]
    seconds = {arm: arms[arm]["seconds"] for arm in ARMS}
    memory: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(MEMORY_ROUNDS):
        for arm in ARMS:
            memory[arm].append(measure(arm, shape, keep_freed=keep_freed)["bytes"])

    def compare(what: dict[str, Any], arm: str, reference: str, limit: float, **more: float) -> dict[str, Any]:
        return {**ratio(np.array(what[arm]), np.array(what[reference])), "limit": limit, **more}

    flops = arms["oelm_freeze"]["step_flops"] / arms["baseline"]["step_flops"]
    tensors = prediction(shape, "oelm_freeze")["peak_bytes"] / prediction(shape)["peak_bytes"]
    frozen = ("oelm_freeze", "baseline")
    return {
        "shape": f"{shape.size}, {shape.batch} × {shape.length} tokens, "
        f"vocabulary {shape.vocab}, dropout {shape.dropout:g}{', freed memory kept' if keep_freed else ''}",
        "threads": timed["protocol"]["threads"],
        "baseline / gpt2": compare(seconds, "baseline", "gpt2", OURS_LIMIT),
        "baseline / gpt2_fused": compare(seconds, "baseline", "gpt2_fused", OURS_LIMIT),
        "plain / gpt2": compare(seconds, "plain", "gpt2", OURS_LIMIT),
        "baseline / plain": compare(seconds, "baseline", "plain", 1.0),
        "oelm_freeze / baseline": compare(seconds, *frozen, flops + FROZEN_MARGIN, predicted_by_flops=flops),
        "matmul_peak": timed["gemm"]["peak_flops_per_second"],
        "times the limit of the matmul peak": {arm: arms[arm]["times_limit"] for arm in ARMS},
        "peak_memory_bytes": memory,
        "memory: baseline / gpt2": compare(memory, "baseline", "gpt2", OURS_LIMIT),
        "memory: oelm_freeze / baseline": compare(
            memory, *frozen, tensors + FROZEN_MARGIN, predicted_by_tensors=tensors
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--dropout", type=float, default=SHAPE.dropout)
    parser.add_argument("--keep-freed", action="store_true", help="keep freed memory, as our trainer does")
    parser.add_argument("--yardstick", action="store_true", help="only times, each arm with and without dropout")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.yardstick:
        found = yardstick(arguments.rounds, arguments.keep_freed)
    else:
        found = facts(arguments.rounds, replace(SHAPE, dropout=arguments.dropout), arguments.keep_freed)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    if arguments.yardstick:
        for name, row in found.items():
            print(f"{name:45s} {row['ratio']:.3f}  [{row['low']:.3f}, {row['high']:.3f}]")
        return
    print(found["shape"], f"({found['threads']} threads)")
    for name, row in ((name, row) for name, row in found.items() if isinstance(row, dict) and "limit" in row):
        verdict = "within" if row["ratio"] <= row["limit"] else "ABOVE"
        print(
            f"{name:30s} {row['ratio']:.3f}  [{row['low']:.3f}, {row['high']:.3f}]  {verdict} limit {row['limit']:.3f}"
            + "".join(
                f", {what} predict {row[key]:.3f}"
                for key, what in (("predicted_by_flops", "FLOPs"), ("predicted_by_tensors", "its tensors"))
                if key in row
            )
        )
    limits = ", ".join(f"{arm} {times:.2f}" for arm, times in found["times the limit of the matmul peak"].items())
    print(f"times FLOPs ÷ matmul peak ({found['matmul_peak'] / 1e9:.0f} GFLOP/s): {limits}")
    for arm, sizes in found["peak_memory_bytes"].items():
        print(f"peak memory of {arm:12s} {np.median(sizes) / 1e6:8.0f} MB (median of {len(sizes)} processes)")


if __name__ == "__main__":
    main()
