"""How wrong the estimator is at the sizes that can be run here: predicted step time and memory beside measured."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from oelm.bench.footprint import measure
from oelm.bench.protocol import FEWEST_ROUNDS, Say, Shape, bench
from oelm.costs.estimate import Job, Machine, estimate

LENGTH = 128
"""Up to here a CPU's attention keeps what a GPU's does, so that the same memory formula holds."""
VOCABULARY = 4096
UTILISATION = 0.75
METHODS = ("baseline", "oelm_freeze")
_COPIED_FLOATS = 1 << 24


def check(
    sizes: Sequence[str], *, batch: int = 4, rounds: int = FEWEST_ROUNDS, say: Say = lambda what, done, total: None
) -> dict[str, Any]:
    """For every size and both methods: predicted and measured, with the speed of the machine from the same run."""
    rows = []
    for size in sizes:
        shape = Shape(size, batch, LENGTH, VOCABULARY)
        timed = bench(METHODS, shape, rounds=rounds, say=lambda what, *n, s=size: say(f"{s}: {what}", *n))
        machine = this_machine(timed["gemm"]["peak_flops_per_second"])
        for name in METHODS:
            say(f"{size}: measuring the memory of {name}", 0, 0)
            job = Job(size, name, batch=batch, length=LENGTH, precision="fp32", vocab=VOCABULARY)
            rows.append(_row(job, machine, timed["arms"][name]["median_seconds"], measure(name, shape)["bytes"]))
    return {
        "length": LENGTH,
        "vocab": VOCABULARY,
        "batch": batch,
        "utilisation": UTILISATION,
        "rows": rows,
        "worst_time_error": max((row["time_error"] for row in rows), key=abs),
        "worst_memory_error": max((row["memory_error"] for row in rows), key=abs),
    }


def _row(job: Job, machine: Machine, seconds: float, memory: float) -> dict[str, Any]:
    said = estimate(job, machine)
    return {
        "size": job.size,
        "method": job.method,
        "predicted_seconds": said["step_seconds"],
        "measured_seconds": seconds,
        "time_error": said["step_seconds"] / seconds - 1,
        "predicted_bytes": said["memory"]["total"],
        "measured_bytes": memory,
        "memory_error": said["memory"]["total"] / memory - 1,
    }


def this_machine(peak_flops: float) -> Machine:
    """This process's share of this machine, with the memory bandwidth of a large copy."""
    return Machine(
        "this machine", peak_flops, UTILISATION, memory_bandwidth=copy_bandwidth(), link_bandwidth=1e9, overlap=0.0
    )


def copy_bandwidth() -> float:
    """Bytes read and written per second by the fastest of a few large copies."""
    source, target = torch.ones(_COPIED_FLOATS), torch.empty(_COPIED_FLOATS)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return 2 * 4 * _COPIED_FLOATS / best
