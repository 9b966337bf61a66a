"""Which method to use, from measured runs only: what kept within a budget, what did not, and what nobody knows yet.

A method is advised only if its whole interval lies within the budget in every study of its kind; one seed proves
nothing. The nearer a study is to the asked model, the more it says; that judgement is left to the reader, so every
study is named with its model.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from oelm.analysis.arms import Arm, Run, Study
from oelm.analysis.results import Loaded
from oelm.analysis.statistics import MET, MISSED, UNDECIDED, goal_verdict
from oelm.analysis.tables import gap_of

LANGUAGE_MODELLING, CLASSIFICATION = TASKS = ("lm", "classification")


@dataclass(frozen=True)
class Evidence:
    """One method in one study."""

    method: str
    dataset: str
    model: str
    seeds: int
    gap: float
    unit: str
    worse_low: float | None
    worse_high: float | None
    """By how many percent it is worse than its baseline, as an interval; None with a single seed."""
    verdict: str
    baseline: str
    step_time_ratio: float | None
    step_time_interleaved: bool


@dataclass(frozen=True)
class Advice:
    kind: str
    task: str
    budget: float
    verdicts: dict[str, str]
    """met, missed or undecided, by method, in the order of preference."""
    evidence: list[Evidence]
    methods: dict[str, dict[str, Any]]
    """What each method is made of, as its runs recorded it."""
    misfits: dict[str, str] = field(default_factory=dict)
    """Why a method cannot be used in the asked model, for those that cannot."""

    @property
    def method(self) -> str | None:
        """The best method that fits the model and is surely within the budget; None if there is none."""
        return next((n for n, verdict in self.verdicts.items() if verdict == MET and n not in self.misfits), None)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "method": self.method}


def kind_of(study: Study) -> str:
    """As the runs recorded it; those of before did not, and had encoders of texts only."""
    model = study.runs[0].config.get("model") or {}
    of_old = "encoder" if isinstance(model, dict) and model.get("encoder") else "decoder"
    return (study.runs[0].result or {}).get("model_family") or of_old


def task_of(study: Study) -> str:
    return CLASSIFICATION if study.metric.gap_in_points else LANGUAGE_MODELLING


def advise(loaded: Loaded, kind: str, task: str, budget: float) -> Advice:
    """Judge every freezing method that was measured with models of this kind at this task."""
    evidence: list[Evidence] = []
    methods: dict[str, dict[str, Any]] = {}
    for study in loaded.studies:
        for arm in study.arms if (kind_of(study), task_of(study)) == (kind, task) else ():
            if found := _evidence(loaded, study, arm, budget):
                evidence.append(found)
                methods.setdefault(arm.method, _in_fractions(arm.runs[0]))
    verdicts = {name: _together([e for e in evidence if e.method == name]) for name in _names(evidence)}
    order = (MET, UNDECIDED, MISSED)
    ranked = sorted(verdicts, key=lambda name: (order.index(verdicts[name]), _mean_gap(evidence, name)))
    return Advice(kind, task, budget, {name: verdicts[name] for name in ranked}, evidence, methods)


def _in_fractions(run: Run) -> dict[str, Any]:
    """The run's method with thaw times as fractions of the run, so that they mean the same in a longer one."""
    thaw, steps = run.method.get("thaw"), run.max_steps
    if not thaw or not steps:
        return run.method

    def fraction(time: float) -> float:
        return time if time <= 1 else (time - 1) / steps

    again = thaw["refreeze"] and fraction(thaw["refreeze"])
    return {**run.method, "thaw": {**thaw, "at": [fraction(time) for time in thaw["at"]], "refreeze": again}}


def _evidence(loaded: Loaded, study: Study, arm: Arm, budget: float) -> Evidence | None:
    """None for arms that freeze nothing, have no baseline beside them, or were trained with other settings."""
    gap = gap_of(arm)
    if gap is None or arm.differences or arm.baseline is None or not arm.freezes:
        return None
    time = loaded.step_time(arm)
    return Evidence(
        arm.method,
        study.dataset,
        study.model,
        len(gap.by_seed),
        gap.value,
        "points" if study.metric.gap_in_points else "%",
        gap.worse.low if gap.worse else None,
        gap.worse.high if gap.worse else None,
        goal_verdict(gap.worse, budget),
        arm.baseline.method,
        time.ratio if time and time.interleaved else None,
        bool(time and time.interleaved),
    )


def _together(evidence: list[Evidence]) -> str:
    """Met only if met everywhere; missed as soon as it is missed somewhere. One seed says neither."""
    found = {e.verdict for e in evidence if e.seeds > 1}
    return MISSED if MISSED in found else MET if found == {MET} else UNDECIDED


def _names(evidence: list[Evidence]) -> list[str]:
    return list(dict.fromkeys(e.method for e in evidence))


def _mean_gap(evidence: list[Evidence], name: str) -> float:
    """By how much it is worse: in percent where there is an interval, else the plain gap (points of accuracy fall)."""
    middles = [
        (-e.gap if e.unit == "points" else e.gap)
        if e.worse_low is None or e.worse_high is None
        else (e.worse_low + e.worse_high) / 2
        for e in evidence
        if e.method == name
    ]
    return sum(middles) / len(middles)
