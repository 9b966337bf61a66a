"""What an arm costs in time, and whether that pays.

How long a step takes is one statistic, a multiple of the plain baseline's, wherever it is shown.
Best is a measurement of all arms interleaved in one process (`step_time.json` beside the runs). Without one it is the
mean ratio of the runs' median step times, paired by seed: no evidence, since the machine may have been busy with other
things. Seconds are always the reference's times this ratio, so that they cannot contradict it.

The yardstick of equal compute: how much longer would the plain baseline have to train to be as good as an arm?
Where plain baselines were trained at several lengths (each with a full schedule of its own), the loss L of each seed is
fitted as a power law of its steps, log L = a + b log steps. An arm's loss, read off its own seed's line, says how many
steps the baseline needs to get there. Its *effective speed-up* is what those steps cost, in FLOPs or in measured
step time, over what the arm cost; below 1 it does not pay. Beyond the lengths that were trained a line is a guess, and
marked as one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oelm.analysis.compare.arms import Arm, is_number
from oelm.analysis.compare.comparison import LENGTH_KEYS, differences
from oelm.analysis.compare.statistics import Gap, Interval, paired_gap, paired_t, spread
from oelm.bench.ratios import FASTER, NO_DIFFERENCE, SLOWER, verdict

FEWEST_LENGTHS = 3
MARGIN = 1.01  # how far beyond the trained lengths still counts as within
_WORK = {f"training.{key}" for key in ("batch_size", "sequence_length", "accumulation", "precision")}  # of a step


@dataclass(frozen=True)
class StepTime:
    ratio: float
    low: float | None = None
    high: float | None = None
    verdict: str | None = None  # faster, slower or no difference; None without an interleaved measurement
    seconds: float | None = None
    predicted: float | None = None  # what the FLOPs of a step allow
    interleaved: bool = False
    is_reference: bool = False

    @property
    def interval(self) -> Interval | None:
        return None if self.low is None or self.high is None else Interval(self.low, self.high)


def step_time(arm: Arm) -> StepTime | None:
    for measured in (found for run in arm.runs for found in run.measured):
        seconds = measured.get("reference_median_seconds")
        if measured["reference"] == arm.method:
            return StepTime(1.0, seconds=seconds, predicted=1.0, interleaved=True, is_reference=True)
        if arm.method in measured["arms"]:
            return _interleaved(measured["arms"][arm.method], seconds)
    if arm.is_baseline:
        own = arm.facts("median_step_time")
        return StepTime(1.0, seconds=float(np.mean(own)) if own else None, is_reference=True)
    return _of_runs(arm)


def checked(content: Any) -> dict[str, Any] | None:
    """The content of a `step_time.json`; None if it measured nothing, an error if a figure is no number."""
    for arm, facts in content["arms"].items():
        values = [facts["ratio"], *(facts[k] for k in ("low", "high", "predicted") if facts.get(k) is not None)]
        if not all(map(is_number, values)):
            raise ValueError(f"{arm} has a figure that is no number: {values}")
    return {"reference": "baseline", **content} if content["arms"] else None


def _interleaved(facts: dict[str, Any], reference: float | None) -> StepTime:
    ratio, low, high, said = facts["ratio"], facts.get("low"), facts.get("high"), facts.get("verdict")
    judged = said if said in (FASTER, SLOWER, NO_DIFFERENCE) else verdict(low, high, None)
    seconds = reference * ratio if is_number(reference) else None
    return StepTime(ratio, low, high, judged, seconds, facts.get("predicted"), interleaved=True)


def _of_runs(arm: Arm) -> StepTime | None:
    reference = arm.plain_baseline
    if reference is None or any(note.values["key"] in _WORK for note in differences(arm, reference)):
        return None
    own, base = ({r.seed: (r.result or {}).get("median_step_time") for r in a.runs} for a in (arm, reference))
    pairs = [(a, b) for seed, a in own.items() if is_number(a) and is_number(b := base.get(seed)) and min(a, b) > 0]
    if not pairs:
        return None
    ratio = math.exp(float(np.mean([math.log(a / b) for a, b in pairs])))
    shown = step_time(reference)
    return StepTime(ratio, seconds=ratio * shown.seconds if shown and shown.seconds is not None else None)


# The yardstick


@dataclass(frozen=True)
class SpeedUp:
    value: float
    low: float | None
    high: float | None  # over seeds, and for time also over the measurement of the step; None with one seed
    by_seed: dict[int, float]
    extrapolated: bool  # whether the baseline would need to be shorter or longer than any that was trained


@dataclass(frozen=True)
class EqualCompute:
    """An arm beside the baseline at equal steps, equal FLOPs and equal measured time, as far as each is known."""

    speedup_flops: SpeedUp | None
    speedup_time: SpeedUp | None
    gap_steps: Gap | None
    gap_flops: Gap | None
    gap_time: Gap | None  # to the baseline as the fit has it after as many steps as the arm's compute buys
    extrapolated: bool  # whether one of the gaps is read off beyond the lengths that were trained


@dataclass(frozen=True)
class Law:
    """log loss = a + b · log steps of one seed."""

    a: float
    b: float
    shortest: float
    longest: float

    def loss(self, steps: float) -> float:
        return math.exp(self.a + self.b * math.log(steps))

    def steps(self, loss: float) -> float:
        return math.exp((math.log(loss) - self.a) / self.b)

    def covers(self, steps: float) -> bool:
        return self.shortest / MARGIN <= steps <= self.longest * MARGIN


def laws(baseline: Arm, ladder: Sequence[Arm]) -> dict[int, Law]:
    """By seed, from the plain baselines that differ in length alone; of seeds with enough lengths that get better."""
    found = {}
    lengths = sorted((arm for arm in ladder if _but_length(arm) == _but_length(baseline)), key=_steps)
    for seed in lengths[0].scores if lengths else ():
        points = [(_steps(arm), arm.losses[seed]) for arm in lengths if arm.losses.get(seed, 0) > 0]
        if len({steps for steps, _ in points}) >= FEWEST_LENGTHS:
            steps, losses = np.log([p[0] for p in points]), np.log([p[1] for p in points])
            b, a = np.polyfit(steps, losses, 1)
            if b < 0:
                found[seed] = Law(float(a), float(b), math.exp(steps.min()), math.exp(steps.max()))
    return found


def equal_compute(
    arm: Arm, fitted: dict[int, Law], measured: Gap | None, flops_ratio: float | None, time: StepTime | None
) -> EqualCompute | None:
    """`measured` is the gap to the plain baseline of equal steps, if there is one; else it is read off the fit."""
    own = {seed: loss for seed, loss in arm.losses.items() if seed in fitted and loss > 0}
    if not own:
        return None
    steps, timed = _steps(arm), time if time and time.interleaved else None
    time_ratio, known = (timed.ratio, timed.low and timed.high) if timed else (None, None)
    half = math.log((timed.high or 1) / (timed.low or 1)) / 2 if timed and known else 0.0
    gaps = {ratio: _gap(arm, fitted, steps * ratio) if ratio else None for ratio in (1.0, flops_ratio, time_ratio)}
    bought = [steps * ratio for ratio, gap in gaps.items() if gap and ratio]
    return EqualCompute(
        _speed_up(own, fitted, steps, flops_ratio),
        _speed_up(own, fitted, steps, time_ratio, half),
        measured or gaps[1.0],
        gaps[flops_ratio],
        gaps[time_ratio],
        any(not law.covers(count) for count in bought for seed, law in fitted.items() if seed in own),
    )


def _speed_up(
    own: dict[int, float], fitted: dict[int, Law], steps: float, ratio: float | None, half: float = 0.0
) -> SpeedUp | None:
    if not ratio:
        return None
    needed = {seed: fitted[seed].steps(loss) for seed, loss in own.items()}
    logs = {seed: math.log(count / (steps * ratio)) for seed, count in needed.items()}
    mean, interval = spread(list(logs.values())).mean, paired_t(list(logs.values()))
    wide = math.hypot((interval.high - interval.low) / 2, half) if interval else 0.0
    low, high = (math.exp(mean - wide), math.exp(mean + wide)) if interval else (None, None)
    guessed = any(not fitted[seed].covers(count) for seed, count in needed.items())
    return SpeedUp(math.exp(mean), low, high, {seed: math.exp(log) for seed, log in logs.items()}, guessed)


def _gap(arm: Arm, fitted: dict[int, Law], steps: float) -> Gap | None:
    return paired_gap(arm.metric, arm.scores, {seed: math.exp(law.loss(steps)) for seed, law in fitted.items()})


def _steps(arm: Arm) -> float:
    return float((arm.runs[0].result or {}).get("steps") or arm.runs[0].max_steps or 0)


def _but_length(arm: Arm) -> dict[str, object]:
    return {key: value for key, value in arm.settings.items() if key not in LENGTH_KEYS}
