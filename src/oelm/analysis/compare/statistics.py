"""How far two arms are apart and how sure that is. Numbers in, numbers out; nothing here knows a run.

Arms are compared seed by seed, always with the paired t interval: it is right whatever the seeds have in common. Taking
the unpaired one where the seeds' correlation turns out negative would pick the narrower of two after looking (it covers
90 to 94 % instead of 95); so the correlation and the unpaired interval are shown and decide nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
GOAL_PERCENT = 5.0  # the study's own bar: at most 5 % worse than the baseline
TINY = 1e-12
MOST_SEEDS = 1_000
Scores = Mapping[int, float]  # by seed
MET, MISSED, UNDECIDED, NOT_COMPARABLE = "met", "missed", "undecided", "not comparable"


@dataclass(frozen=True)
class Metric:
    """What a run is judged by, and how it is written."""

    name: str
    key: str  # its field in `result.json`'s `final` and in validation rows
    higher_is_better: bool
    scale: float = 1.0  # shown value = scale × stored value (accuracies are stored as fractions, shown in percent)
    suffix: str = ""
    gap_in_points: bool = False  # differences are given in percentage points instead of percent of the baseline

    @property
    def sign(self) -> int:
        """Times a score, what is lower for the better one."""
        return -1 if self.higher_is_better else 1

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
    std: float | None  # sample standard deviation; None with a single value
    count: int


@dataclass(frozen=True)
class Gap:
    """An arm against its baseline over the seeds they share. The intervals are None with fewer than two seeds."""

    value: float  # in percent of the baseline, or in points; as written, so a positive perplexity gap is a loss
    by_seed: dict[int, float]
    t: Interval | None
    worse: Interval | None  # by how many percent the arm is worse, whichever direction is good: what the goal judges
    logs: tuple[float, ...] = ()  # log(arm ÷ baseline) by seed, a loss of quality positive: what `worse` is made of
    unpaired: Interval | None = None  # welch's interval, as if the seeds had nothing in common. Decides nothing
    correlation: float | None = None  # of the two arms' scores over common seeds; None with fewer than three


def spread(values: Sequence[float]) -> Spread:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), std, len(values))


def paired_t(differences: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The interval of the mean difference if differences are normal; None with fewer than two, or two equal ones."""
    count = len(differences)  # two equal ones, as accuracies on few rows easily are, do not mean that there is no noise
    if count < 2 or (count == 2 and abs(differences[0] - differences[1]) < TINY):
        return None
    return _around(differences, float(np.std(differences, ddof=1)) / math.sqrt(count), count - 1, level)


def unpaired_t(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Welch's interval of the difference of means; None with fewer than two values or no spread at all."""
    if min(len(first), len(second)) < 2:
        return None
    shares = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
    if sum(shares) < TINY**2:
        return None
    freedom = sum(shares) ** 2 / sum(s**2 / (len(v) - 1) for s, v in zip(shares, (first, second), strict=True))
    return _around([float(np.mean(first)) - float(np.mean(second))], math.sqrt(sum(shares)), freedom, level)


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's; None with fewer than three pairs or where one side does not vary."""
    if len(first) < 3 or min(np.std(first), np.std(second)) < TINY:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def corrected_level(count: int, level: float = LEVEL) -> float:
    """Šidák: the level at which `count` intervals together hold with `level`, for the best of so many arms.

    >>> round(corrected_level(10), 4)
    0.9949
    """
    return level ** (1 / max(1, count))


def paired_gap(metric: Metric, arm: Scores, baseline: Scores, level: float = LEVEL) -> Gap | None:
    """Scores by seed against the baseline's; None without a common seed.

    >>> gap = paired_gap(METRICS[0], {0: 11.0, 1: 11.0, 2: 9.0}, {0: 10.0, 1: 10.0})
    >>> round(gap.value, 6), list(gap.by_seed)
    (10.0, [0, 1])
    """
    seeds = sorted(arm.keys() & baseline.keys())
    if not seeds:
        return None
    own, other = ([math.log(max(scores[s], TINY)) for s in seeds] for scores in (arm, baseline))
    logs = [a - b for a, b in zip(own, other, strict=True)]
    worse = _percents(paired_t(logs, level))
    shown, value, t = [_percent(log) for log in logs], _percent(float(np.mean(logs))), worse
    unpaired = _percents(unpaired_t(own, other, level))
    if worse is not None and metric.higher_is_better:
        worse = Interval(-worse.high, -worse.low)
    if metric.gap_in_points:
        own, other = ([metric.scale * scores[s] for s in seeds] for scores in (arm, baseline))
        shown = [a - b for a, b in zip(own, other, strict=True)]
        value, t = float(np.mean(shown)), paired_t(shown, level)
        unpaired, worse = unpaired_t(own, other, level), worse if t else None
    by_seed, losses = dict(zip(seeds, shown, strict=True)), tuple(metric.sign * log for log in logs)
    return Gap(value, by_seed, t, worse, losses, unpaired, correlation(own, other))


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


def more_seeds(logs: Sequence[float], limit: float = GOAL_PERCENT) -> int | None:
    """About how many seeds are missing until the interval leaves the limit, if mean and spread stay as they are.

    An estimate from a spread that few seeds know badly; None with fewer than two seeds, or if it needs over a thousand.

    >>> more_seeds([0.02, 0.03, 0.04]), more_seeds([0.02])
    (1, None)
    """
    sd, have = float(np.std(logs, ddof=1)) if len(logs) > 1 else 0.0, len(logs)
    apart = abs(float(np.mean(logs)) - math.log1p(limit / 100))
    for count in range(max(3, have + 1), MOST_SEEDS if sd > TINY else 0):
        if float(stdtrit(count - 1, (1 + LEVEL) / 2)) * sd / math.sqrt(count) < apart:
            return count - have
    return None


def _around(values: Sequence[float], error: float, freedom: float, level: float) -> Interval:
    half, mean = float(stdtrit(freedom, (1 + level) / 2)) * error, float(np.mean(values))
    return Interval(mean - half, mean + half)


def _percent(log_ratio: float) -> float:
    return 100 * math.expm1(min(log_ratio, 50.0))  # a wide interval of few seeds must not overflow


def _percents(interval: Interval | None) -> Interval | None:
    return interval and Interval(_percent(interval.low), _percent(interval.high))
