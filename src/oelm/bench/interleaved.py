"""Step times that can be compared: arms interleaved A-B-C-C-B-A in one process, so that drift hits all alike."""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Step = Callable[[], object]
Watch = Callable[[int, int], None]
"""Told after every step how many of how many are done."""
_RESAMPLES = 2_000


def interleave(
    steps: Mapping[str, Step], *, rounds: int, warmup: int = 2, watch: Watch = lambda done, total: None
) -> dict[str, NDArray[np.float64]]:
    """Seconds per step of every arm, (rounds,): each round runs all arms forth and back and averages the two visits.

    A step must end with the device idle (on a GPU: synchronised), or its time would be somebody else's.
    """
    done, total = 0, len(steps) * (warmup + 2 * rounds)
    for step in steps.values():
        for _ in range(warmup):
            step()
            done += 1
            watch(done, total)
    order = [*steps, *reversed(list(steps))]
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    gc.disable()  # a collection in the middle of one arm's step would be charged to it
    try:
        for _ in range(rounds):
            visits: dict[str, float] = dict.fromkeys(steps, 0.0)
            for name in order:
                start = time.perf_counter()
                steps[name]()
                visits[name] += (time.perf_counter() - start) / 2
                done += 1
                watch(done, total)
            for name, value in visits.items():
                seconds[name].append(value)
    finally:
        gc.enable()
    return {name: np.array(values) for name, values in seconds.items()}


def ratio(arm: NDArray[np.float64], reference: NDArray[np.float64], seed: int = 0) -> dict[str, Any]:
    """Median of the per-round ratios with a 95 % bootstrap interval; no difference if the interval covers 1."""
    ratios = arm / reference
    generator = np.random.default_rng(seed)
    samples = np.median(generator.choice(ratios, (_RESAMPLES, len(ratios))), axis=1)
    low, high = np.percentile(samples, [2.5, 97.5])
    return {
        "ratio": float(np.median(ratios)),
        "low": float(low),
        "high": float(high),
        "rounds": len(ratios),
        "median_seconds": float(np.median(arm)),
        "differs": not low <= 1 <= high,
    }
