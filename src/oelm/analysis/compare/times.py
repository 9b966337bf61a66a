"""How long a step of an arm takes, as a multiple of the plain baseline's: one statistic, wherever it is shown.

Best is a measurement of all arms interleaved in one process (`step_time.json` beside the runs). Without one it is the
mean ratio of the runs' median step times, paired by seed: no evidence, since the machine may have been busy with other
things. Seconds are always the reference's times this ratio, so that they cannot contradict it.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from oelm.analysis.compare.arms import Arm, is_number
from oelm.analysis.compare.comparison import differences
from oelm.analysis.compare.statistics import Interval
from oelm.bench.ratios import FASTER, NO_DIFFERENCE, SLOWER, verdict

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
    return StepTime(ratio, seconds=ratio * float(np.mean([b for _, b in pairs])))
