"""How far two arms are apart and how sure that is. Numbers in, numbers out; nothing here knows a run.

Arms are compared seed by seed: a seed fixes the data order and the initial weights that the arms share, so the paired
difference has less noise than the difference of means. The verdict uses the t interval; with a handful of seeds the
bootstrap can only reshuffle those few values and is too narrow, so it is given beside it, not instead of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
GOAL_PERCENT = 5.0
"""The study's own bar: at most 5 % worse than the baseline."""
TINY = 1e-12
MET, MISSED, UNDECIDED, NOT_COMPARABLE = "met", "missed", "undecided", "not comparable"
FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference"


@dataclass(frozen=True)
class Metric:
    """What a run is judged by, and how it is written."""

    name: str
    key: str
    """Its field in `result.json`'s `final` and in validation rows."""
    higher_is_better: bool
    scale: float = 1.0
    """Shown value = scale × stored value (accuracies are stored as fractions, shown in percent)."""
    suffix: str = ""
    gap_in_points: bool = False
    """Differences are given in percentage points instead of percent of the baseline."""

    def show(self, value: float) -> str:
        shown = value * self.scale
        digits = 2 if self.suffix else max(1, min(4, 3 - math.floor(math.log10(abs(shown) or 1))))
        return f"{shown:,.{digits}f}{self.suffix}"


METRICS = (
    Metric("perplexity", "perplexity", higher_is_better=False),
    Metric("accuracy", "accuracy", higher_is_better=True, scale=100, suffix=" %", gap_in_points=True),
    Metric("f1", "f1", higher_is_better=True, scale=100, suffix=" %", gap_in_points=True),
)


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    mean: float
    std: float | None
    """Sample standard deviation; None with a single value."""
    count: int


@dataclass(frozen=True)
class Gap:
    """An arm against its baseline over the seeds they share. The intervals are None with fewer than two seeds."""

    value: float
    """In percent of the baseline, or in points; as written, so a positive perplexity gap is a loss."""
    by_seed: dict[int, float]
    t: Interval | None
    bootstrap: Interval | None
    worse: Interval | None
    """By how many percent the arm is worse than the baseline, whichever direction is good: what the goal judges."""


def spread(values: Sequence[float]) -> Spread:
    """
    >>> spread([1.0, 3.0])
    Spread(mean=2.0, std=1.4142135623730951, count=2)
    """
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), std, len(values))


def paired_t(differences: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The interval of the mean difference if differences are normal; None with fewer than two, or two equal ones.

    Two equal differences, as accuracies on few rows easily are, do not mean that there is no noise.
    """
    count = len(differences)
    if count < 2 or (count == 2 and abs(differences[0] - differences[1]) < TINY):
        return None
    half = float(stdtrit(count - 1, (1 + level) / 2)) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    mean = float(np.mean(differences))
    return Interval(mean - half, mean + half)


def bootstrap(
    differences: Sequence[float], level: float = LEVEL, resamples: int = 10_000, seed: int = 0
) -> Interval | None:
    """Percentile bootstrap of the mean difference; the same numbers give the same interval."""
    if len(differences) < 2:
        return None
    drawn = np.random.default_rng(seed).choice(np.asarray(differences, dtype=float), (resamples, len(differences)))
    low, high = np.percentile(drawn.mean(axis=1), [50 * (1 - level), 50 * (1 + level)])
    return Interval(float(low), float(high))


def paired_gap(metric: Metric, arm: Mapping[int, float], baseline: Mapping[int, float]) -> Gap | None:
    """Scores by seed against the baseline's; None without a common seed.

    >>> gap = paired_gap(METRICS[0], {0: 11.0, 1: 11.0, 2: 9.0}, {0: 10.0, 1: 10.0})
    >>> round(gap.value, 6), list(gap.by_seed)
    (10.0, [0, 1])
    """
    seeds = sorted(arm.keys() & baseline.keys())
    if not seeds:
        return None
    logs = [math.log(max(arm[s], TINY) / max(baseline[s], TINY)) for s in seeds]
    ratios = paired_t(logs)
    worse = _map(_percent, ratios)
    if worse is not None and metric.higher_is_better:
        worse = Interval(-worse.high, -worse.low)
    if metric.gap_in_points:
        points = [metric.scale * (arm[s] - baseline[s]) for s in seeds]
        by_seed, t = dict(zip(seeds, points, strict=True)), paired_t(points)
        return Gap(float(np.mean(points)), by_seed, t, bootstrap(points), worse if t else None)
    return Gap(
        value=_percent(float(np.mean(logs))),
        by_seed={seed: _percent(log) for seed, log in zip(seeds, logs, strict=True)},
        t=_map(_percent, ratios),
        bootstrap=_map(_percent, bootstrap(logs)),
        worse=worse,
    )


def goal_verdict(worse: Interval | None, limit: float = GOAL_PERCENT) -> str:
    """Whether an arm is at most `limit` percent worse: only said when the whole interval says so.

    >>> goal_verdict(Interval(1, 4)), goal_verdict(Interval(6, 9)), goal_verdict(Interval(4, 6)), goal_verdict(None)
    ('met', 'missed', 'undecided', 'undecided')
    """
    if worse is None:
        return UNDECIDED
    if worse.high <= limit:
        return MET
    return MISSED if worse.low > limit else UNDECIDED


def ratio_verdict(low: float | None, high: float | None) -> str | None:
    """What an interval of a time ratio says; None when there is no interval.

    >>> ratio_verdict(0.9, 0.95), ratio_verdict(0.98, 1.01), ratio_verdict(1.02, 1.1), ratio_verdict(None, None)
    ('faster', 'no difference', 'slower', None)
    """
    if low is None or high is None:
        return None
    if low <= 1.0 <= high:
        return NO_DIFFERENCE
    return FASTER if high < 1.0 else SLOWER


def _percent(log_ratio: float) -> float:
    return 100 * math.expm1(min(log_ratio, 50.0))  # a wide interval of few seeds must not overflow


def _map(function: Callable[[float], float], interval: Interval | None) -> Interval | None:
    return None if interval is None else Interval(function(interval.low), function(interval.high))
