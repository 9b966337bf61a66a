"""Which method to use, from measured runs only: what kept within a budget, what did not, and what nobody knows yet.

A method is advised only if, on every data set it was tried on, its whole interval over several seeds lies within the
budget; one seed proves nothing, nor does a baseline that lacks the method's adapters or architecture. Beside it stand
the trained arms: what is better than the plain baseline at no more FLOPs needs no freezing.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from oelm.analysis.compare.arms import Arm, Comparison
from oelm.analysis.compare.comparison import place_of
from oelm.analysis.compare.record import ArmRecord, gap_of
from oelm.analysis.compare.results import Loaded
from oelm.analysis.compare.statistics import GOAL_PERCENT, MET, MISSED, UNDECIDED, goal_verdict, paired_gap
from oelm.runs import FAILED

LANGUAGE_MODELLING, CLASSIFICATION = TASKS = ("lm", "classification")


@dataclass(frozen=True)
class Evidence:
    """One method in one comparison."""

    method: str
    dataset: str
    comparison: str  # the data set and the model, as reports name them
    model: str
    seeds: int
    gap: float
    unit: str
    worse_low: float | None  # by how many percent it is worse than its baseline, as an interval; None with one seed
    worse_high: float | None
    verdict: str
    baseline: str
    equal: bool  # whether that baseline has the same learned adapters and start
    step_time_ratio: float | None
    step_time_low: float | None
    step_time_high: float | None
    flops_ratio: float | None = None  # of a step, to the plain baseline, as measured there
    rival: str | None = None  # the best arm there that trains everything for at most its FLOPs, as one of several
    rival_worse: tuple[float, float] | None = None  # by how many percent it is worse than that one


@dataclass(frozen=True)
class Advice:
    kind: str
    task: str
    budget: float
    verdicts: dict[str, str]  # met, missed or undecided, by method, in the order of preference
    evidence: list[Evidence]
    methods: dict[str, dict[str, Any]]  # what each method is made of, as its runs recorded it
    trained: list[Evidence] = field(default_factory=list)  # nothing frozen, surely better than the plain baseline
    left_out: list[str] = field(default_factory=list)  # what was there and could not serve, with the reason
    costs: dict[str, dict[str, Any]] = field(default_factory=dict)  # in the asked model, of methods that fit it
    misfits: dict[str, str] = field(default_factory=dict)  # why the others do not

    @property
    def method(self) -> str | None:
        """Of those surely within the budget that save something in the asked model, the one that saves most."""
        saved = {name: 1 - cost["step_flops_vs_baseline"] for name, cost in self.costs.items()}
        useful = [name for name, verdict in self.verdicts.items() if verdict == MET and saved.get(name, 0) > 0]
        return max(useful, key=lambda name: round(saved[name], 3), default=None)

    def worst(self, name: str) -> Evidence:
        """The comparison that speaks most against a method, of those with several seeds if there are any."""
        found = [e for e in self.evidence if e.method == name]
        several = [e for e in found if e.worse_high is not None]
        return max(several or found, key=_worse)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "method": self.method}


def advise(loaded: Loaded, kind: str, task: str, budget: float) -> Advice:
    """Judge every freezing method that was measured with models of this kind at this task."""
    evidence: list[Evidence] = []
    methods: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    left_out, unproven = [], set()
    failed = [run for run in loaded.incomplete if run.state == FAILED]
    in_points = task == CLASSIFICATION
    asked = [c for c in loaded.comparisons if c.family == kind and c.metric.gap_in_points == in_points]
    for comparison in asked:
        for record in (record for record in comparison.records if record.arm.made.freezes):
            arm = record.arm
            broken = [run.name for run in failed if run.arm_key == arm.runs[0].arm_key]
            name = _name(arm, names)
            left_out += [f"{run} failed, so {name} is not proven" for run in broken]
            unproven |= {name} if broken else set()
            if reason := _unfit(arm):
                left_out.append(f"{arm.label} on {comparison.dataset} ({comparison.model}): {reason}")
                continue
            evidence.append(_evidence(record, arm.baseline, name, budget))
            methods.setdefault(name, _in_fractions(arm))
    for run in failed:
        beside = [r for c in asked if place_of(c.runs[0]) == place_of(run) for r in c.runs]
        known = names.get(run.method_key)
        # Where others came to their end, it failed; where nothing did, a failure may be anyone's.
        if known and beside and all(r.method_key != run.method_key for r in beside):
            left_out.append(f"{run.name} failed and no other seed of {known} came to its end there; it is not proven")
            unproven.add(known)
    verdicts = {name: _together([e for e in evidence if e.method == name]) for name in methods}
    verdicts |= {name: UNDECIDED for name, verdict in verdicts.items() if verdict == MET and name in unproven}
    worse = {name: float(np.mean([_worse(e) for e in evidence if e.method == name])) for name in methods}
    ranked = sorted(verdicts, key=lambda name: ((MET, UNDECIDED, MISSED).index(verdicts[name]), worse[name]))
    return Advice(
        kind, task, budget, {name: verdicts[name] for name in ranked}, evidence, methods, _trained(asked), left_out
    )


def _trained(asked: list[Comparison]) -> list[Evidence]:
    """Arms that train everything, cost no FLOPs more, and are surely better wherever they had several seeds."""
    found = [
        r for c in asked for r in c.records if r.is_trained and r.plain and r.plain.comparable and r.plain.gap.worse
    ]
    made = {r.label: str({**r.arm.made.to_dict(), "name": "", "summary": ""}) for r in found}  # under whatever name
    no_better = {made[r.label] for r in found if r.plain and r.plain.gap.worse and r.plain.gap.worse.high >= 0}
    cheap = [r for r in found if made[r.label] not in no_better and (r.costs.flops_ratio or math.inf) <= 1]
    return sorted((_evidence(r, r.arm.plain_baseline, r.method, GOAL_PERCENT) for r in cheap), key=_worse)


def _name(arm: Arm, names: dict[str, str]) -> str:
    """The method's name; different methods under one name, which only a user can have, are told apart."""
    key = arm.runs[0].method_key
    if key not in names:
        alike = sum(name.partition(" (#")[0] == arm.method for name in names.values())
        names[key] = f"{arm.method} (#{alike + 1})" if alike else arm.method
    return names[key]


def _in_fractions(arm: Arm) -> dict[str, Any]:
    """The arm's method with thaw times as fractions of the run, so that they mean the same in a longer one."""
    values, steps = arm.made.to_dict(), arm.runs[0].max_steps
    if not values["thaw"] or not steps:
        return values
    times = [*values["thaw"]["at"], values["thaw"]["refreeze"]]
    *at, again = (time if not time or time <= 1 else (time - 1) / steps for time in times)
    return {**values, "thaw": {**values["thaw"], "at": at, "refreeze": again}}


def _unfit(arm: Arm) -> str | None:
    """Why an arm is no evidence."""
    if arm.baseline is None:
        return "there is no baseline beside it"
    if arm.differences:
        return f"it was trained otherwise than {arm.baseline.label}"
    return None if gap_of(arm) else f"it has no seed in common with {arm.baseline.label}"


def _evidence(record: ArmRecord, baseline: Arm | None, name: str, budget: float) -> Evidence:
    gap = paired_gap(record.metric, record.scores, baseline.scores) if baseline else None
    assert gap is not None and baseline is not None
    unit, equal = "points" if record.metric.gap_in_points else "%", not record.lacks_equal
    low, high = (gap.worse.low, gap.worse.high) if gap.worse else (None, None)
    verdict, time = goal_verdict(gap.worse, budget), record.time
    rival = record.best_trained if record.best_trained and record.best_trained.comparable else None
    worse = rival.gap.worse if rival else None
    ratio, least, most = (time.ratio, time.low, time.high) if time and time.interleaved else (None, None, None)
    where = {"dataset": record.dataset, "comparison": f"{record.dataset} ({record.model})", "model": record.model}
    measured = {"seeds": len(gap.by_seed), "gap": gap.value, "unit": unit, "worse_low": low, "worse_high": high}
    times = {"step_time_ratio": ratio, "step_time_low": least, "step_time_high": most}
    judged = {"verdict": verdict, "baseline": baseline.method, "equal": equal, "flops_ratio": record.costs.flops_ratio}
    beside = {"rival": rival.label if rival else None, "rival_worse": (worse.low, worse.high) if worse else None}
    return Evidence(**{"method": name, **where, **measured, **times, **judged, **beside})  # type: ignore[arg-type]


def _together(evidence: list[Evidence]) -> str:
    """Missed if missed anywhere. Met if, on every data set, there are several seeds and an equal baseline, and all that
    have both are met."""
    several = [e for e in evidence if e.worse_low is not None]
    if any(e.verdict == MISSED for e in several):
        return MISSED
    proven = {e.dataset for e in several if e.equal} == {e.dataset for e in evidence}
    return MET if proven and all(e.verdict == MET for e in several) else UNDECIDED


def _worse(e: Evidence) -> float:
    """By how much it is worse: in percent where there is an interval, else the plain gap (points of accuracy fall)."""
    if e.worse_low is None or e.worse_high is None:
        return -e.gap if e.unit == "points" else e.gap
    return (e.worse_low + e.worse_high) / 2
