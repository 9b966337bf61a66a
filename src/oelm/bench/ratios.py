"""Step times that can be compared, and what may be said of them. No torch: reports read the same verdict.

Every round visits every arm once, and each round begins with the next arm, so that over the rounds every arm stands in
every place. An untimed step of the arm that comes last leads a round in: a timed step always follows the same other
arm, never itself, whose data would still be in the caches. Ratios are taken round by round.
"""

import gc
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Step = Callable[[int], object]  # told its number: what all arms do in one round has the same
Watch = Callable[[int, int], None]  # told after every step how many of how many are done
ORDER = "every arm once a round, the first arm rotating, in one process"
INTERVAL = "95 % bootstrap of the median of per-round ratios"
RULE = "Faster or slower: the interval excludes 1 and a two-sided sign test over rounds has p < 0.05"
FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference"
SIGNIFICANT = 0.05
FEWEST_ROUNDS = 6  # with fewer, rounds that all agree may still be chance: the sign test cannot fall below 0.05
_RESAMPLES = 2_000


def interleave(
    steps: Mapping[str, Step], *, rounds: int, warmup: int = 2, watch: Watch = lambda done, total: None
) -> dict[str, NDArray[np.float64]]:
    """Seconds per step of every arm, (rounds,). A step must end with the device idle, or its time is another's."""
    names, done = list(steps), 0
    total = len(names) * warmup + (len(names) + 1) * rounds
    seconds: dict[str, list[float]] = {name: [] for name in names}

    def take(name: str, number: int) -> float:
        nonlocal done
        start = time.perf_counter()
        steps[name](number)
        spent = time.perf_counter() - start
        done += 1
        watch(done, total)
        return spent

    for name in names:
        for number in range(warmup):
            take(name, number)
    gc.collect()
    gc.disable()  # a collection in the middle of one arm's step would be charged to it
    try:
        for number in range(warmup, warmup + rounds):
            first = (number - warmup) % len(names)
            order = names[first:] + names[:first]
            take(order[-1], number)  # untimed
            for name in order:
                seconds[name].append(take(name, number))
    finally:
        gc.enable()
    return {name: np.array(values) for name, values in seconds.items()}


def ratio(arm: ArrayLike, reference: ArrayLike, seed: int = 0) -> dict[str, Any]:
    """Median of the per-round ratios with its 95 % bootstrap interval, the sign test over rounds, and the verdict."""
    seconds = np.asarray(arm, dtype=np.float64)
    ratios = seconds / np.asarray(reference, dtype=np.float64)
    samples = np.median(np.random.default_rng(seed).choice(ratios, (_RESAMPLES, len(ratios))), axis=1)
    low, high = (float(bound) for bound in np.percentile(samples, [2.5, 97.5]))
    sign_p = sign_test(int((ratios < 1).sum()), int((ratios > 1).sum()))
    return {
        "ratio": float(np.median(ratios)),
        "low": low,
        "high": high,
        "sign_p": sign_p,
        "verdict": verdict(low, high, sign_p),
        "rounds": len(ratios),
        "median_seconds": float(np.median(seconds)),
    }


def verdict(low: float | None, high: float | None, sign_p: float | None) -> str | None:
    """What a time ratio's interval and its sign test say together; None when there is no interval.

    Records from before rounds were kept have no sign test (None): of those the interval alone speaks.

    >>> verdict(0.90, 0.95, 0.01), verdict(0.953, 0.999, 0.15), verdict(0.98, 1.01, 0.01), verdict(1.02, 1.1, None)
    ('faster', 'no difference', 'no difference', 'slower')
    """
    if low is None or high is None:
        return None
    if low <= 1.0 <= high or (sign_p is not None and sign_p >= SIGNIFICANT):
        return NO_DIFFERENCE
    return FASTER if high < 1.0 else SLOWER


def sign_test(below: int, above: int) -> float:
    """Two-sided p of so many rounds on either side if both were equally likely; rounds on neither side do not count.

    >>> sign_test(6, 0), sign_test(10, 2) < 0.05 < sign_test(9, 3), sign_test(0, 0)
    (0.03125, True, 1.0)
    """
    rounds, fewer = below + above, min(below, above)
    return min(1.0, 2 * sum(math.comb(rounds, k) for k in range(fewer + 1)) / 2**rounds)
