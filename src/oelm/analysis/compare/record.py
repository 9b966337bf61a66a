"""One typed record per arm, computed once: what tables, figures, sentences, JSON and the dashboard read.

results (folders → runs) → comparison (runs → arms → comparisons) → statistics, times → record
"""

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from oelm.analysis.compare import statistics
from oelm.analysis.compare.arms import Arm, Comparison, Note
from oelm.analysis.compare.comparison import LENGTH_KEYS, differences
from oelm.analysis.compare.statistics import MET, MISSED, NOT_COMPARABLE, UNDECIDED, Gap, Metric, paired_gap, spread
from oelm.analysis.compare.times import EqualCompute, Law, StepTime, equal_compute, laws, step_time
from oelm.runs import checkpoint_bytes

VERIFIED, NO_WEIGHTS, NOTHING_FROZEN, NOT_VERIFIED = "verified", "no weights", "nothing frozen", "not verified"
CLOSE_PERCENT = 1.0
TOLERANCE = 1.005  # arms whose FLOPs differ by less are of equal compute
FALLING_NATS = 0.01  # a validation loss that fell by more than this over the last third of the steps was still falling


@dataclass(frozen=True)
class Opponent:
    """A baseline that an arm is compared with."""

    label: str
    gap: Gap
    differences: list[Note]  # settings that differ besides the method: then the gap is not the method's alone

    @property
    def comparable(self) -> bool:
        return not self.differences

    def verdict(self, limit: float = statistics.GOAL_PERCENT) -> str:
        """met, missed or undecided: whether the arm is at most `limit` percent worse, by the whole interval."""
        return statistics.goal_verdict(self.gap.worse, limit) if self.comparable else NOT_COMPARABLE


@dataclass(frozen=True)
class Costs:
    parameters: int | None
    frozen: int | None
    trainable: int | None
    flops_ratio: float | None  # matmul FLOPs of a training step ÷ the plain baseline's
    block_flops_ratio: float | None  # the same for the blocks' weight matrices alone
    total_flops: float | None  # of the whole run
    weight_bytes: int | None
    optimizer_bytes: int | None
    checkpoint_bytes: int | None
    peak_memory_bytes: float | None


@dataclass(frozen=True)
class Exposure:
    """How much text an arm has seen, as far as its runs recorded it."""

    tokens: int | None
    train_tokens: int | None  # tokens there were to train on
    epochs: float | None
    text_share: float | None  # of the whole corpus, what was prepared
    falling: bool

    @property
    def first_look(self) -> bool:
        """Less than one pass over the data and the loss still falling: no result yet."""
        return self.epochs is not None and self.epochs < 1 and self.falling


@dataclass(frozen=True)
class ArmRecord:
    label: str
    method: str
    dataset: str
    model: str
    metric: Metric
    seeds: tuple[int, ...]
    score: float  # mean over seeds of the metric on the whole validation set
    score_std: float | None
    scores: dict[int, float]
    is_baseline: bool
    is_trained: bool  # whether everything trains all the time, as in a baseline: then there is nothing to judge
    plain: Opponent | None  # the baseline without adapters; None for itself, or without one
    equal: Opponent | None  # the one with the same adapters, start and architecture, if that is not the plain one
    lacks_equal: bool  # it has adapters, a start or an architecture that no baseline trained alike has
    verdict: str | None  # whether it is at most 5 % worse than each of the two; None where there is nothing to judge
    close: str | None  # the same for 1 %
    more_seeds: int | None  # about how many more seeds would decide an undecided verdict; None if decided or unknown
    time: StepTime | None
    costs: Costs
    compute: EqualCompute | None  # None without plain baselines of several lengths
    best_trained: Opponent | None  # the best that trains everything for at most its FLOPs, as one chosen among several
    exposure: Exposure
    frozen_check: str
    bits_per_byte: float | None
    arm: Arm = field(repr=False, compare=False)  # the runs behind it

    @property
    def opponents(self) -> list[Opponent]:
        return [opponent for opponent in (self.plain, self.equal) if opponent]

    @property
    def comparable(self) -> bool:
        return all(opponent.comparable for opponent in self.opponents)

    def to_dict(self) -> dict[str, Any]:
        """Plain types only: numbers, strings, lists and dictionaries; None where nothing is known."""
        values = {f.name: for_json(getattr(self, f.name)) for f in fields(self) if f.name != "arm"}
        for name in ("plain", "equal"):
            if opponent := getattr(self, name):
                values[name]["verdict"] = opponent.verdict()
        return {**values, "metric": self.metric.name, "gap_unit": "points" if self.metric.gap_in_points else "percent"}


def records_of(comparison: Comparison) -> list[ArmRecord]:
    fitted = {arm.label: laws(arm, comparison.ladder) for arm in comparison.arms if arm.is_baseline}
    trained = [arm for arm in [*comparison.arms, *comparison.ladder] if arm.made.is_trained]
    rivals = [(arm, _total_flops(arm)) for arm in trained]
    return [_record(arm, comparison, fitted, rivals) for arm in comparison.arms]


def best_of(comparison: Comparison) -> tuple[ArmRecord, Gap, int] | None:
    """The arm with something untrained that is nearest to the plain baseline, its gap (Šidák), and among how many."""
    rivals = [r for r in comparison.records if r.verdict and r.plain and r.plain.comparable]
    if not rivals:
        return None
    chosen = min(rivals, key=lambda r: sum(r.plain.gap.logs) / len(r.plain.gap.logs) if r.plain else math.inf)
    base = chosen.arm.plain_baseline
    assert base is not None
    gap = paired_gap(comparison.metric, chosen.scores, base.scores, statistics.corrected_level(len(rivals)))
    return (chosen, gap, len(rivals)) if gap else None


def gap_of(arm: Arm) -> Gap | None:
    """To the baseline that has the same adapters, else to the plain one."""
    return paired_gap(arm.metric, arm.scores, arm.baseline.scores) if arm.baseline else None


def _record(
    arm: Arm, comparison: Comparison, fitted: dict[str, dict[int, Law]], rivals: list[tuple[Arm, float | None]]
) -> ArmRecord:
    score, time = spread(list(arm.scores.values())), step_time(arm)
    plain = _against(arm, arm.plain_baseline)
    equal = _against(arm, arm.baseline) if arm.baseline is not arm.plain_baseline else None
    opponents = [opponent for opponent in (plain, equal) if opponent] if arm.made.freezes or arm.made.moves else []
    verdict = _worst([opponent.verdict() for opponent in opponents])
    costs, law = _costs(arm, time), fitted.get(arm.plain_baseline.label, {}) if arm.plain_baseline else {}
    measured = plain.gap if plain and plain.comparable else None
    missing = [statistics.more_seeds(o.gap.logs) for o in opponents if o.verdict() == UNDECIDED]
    return ArmRecord(
        label=arm.label,
        method=arm.method,
        dataset=comparison.dataset,
        model=comparison.model,
        metric=comparison.metric,
        seeds=tuple(arm.scores),
        score=score.mean,
        score_std=score.std,
        scores=arm.scores,
        is_baseline=arm.is_baseline,
        is_trained=arm.made.is_trained,
        plain=plain,
        equal=equal,
        lacks_equal=arm.is_unequal,
        verdict=verdict,
        close=_worst([opponent.verdict(CLOSE_PERCENT) for opponent in opponents]),
        more_seeds=max(filter(None, missing), default=None) if verdict == UNDECIDED and all(missing) else None,
        time=time,
        costs=costs,
        compute=equal_compute(arm, law, measured, costs.flops_ratio, time),
        best_trained=None if arm.made.is_trained else _best_trained(arm, costs, rivals),
        exposure=_exposure(arm),
        frozen_check=_frozen_check(arm),
        bits_per_byte=_mean(arm, "bits_per_byte"),
        arm=arm,
    )


def _against(arm: Arm, baseline: Arm | None) -> Opponent | None:
    gap = paired_gap(arm.metric, arm.scores, baseline.scores) if baseline else None
    return Opponent(baseline.label, gap, differences(arm, baseline)) if baseline and gap else None


def _best_trained(arm: Arm, costs: Costs, rivals: list[tuple[Arm, float | None]]) -> Opponent | None:
    """Of the trained arms that cost at most as many FLOPs in all, the best, however long it was trained.

    One that differs in more than its method and length, as in the rate, is no opponent: both must be at their best.
    """
    limit = (costs.total_flops or 0) * TOLERANCE
    cheap = [rival for rival, cost in rivals if cost and cost <= limit and rival.scores.keys() & arm.scores.keys()]
    fair = [rival for rival in cheap if all(n.values["key"] in LENGTH_KEYS for n in differences(arm, rival))]
    if not fair:
        return None
    rival = min(fair, key=lambda rival: arm.metric.sign * rival.score)
    gap = paired_gap(arm.metric, arm.scores, rival.scores, statistics.corrected_level(len(fair)))
    return Opponent(rival.label, gap, []) if gap else None


def _worst(verdicts: list[str]) -> str | None:
    """Met only if met everywhere; missed if missed anywhere."""
    return next((v for v in (NOT_COMPARABLE, MISSED, UNDECIDED, MET) if v in verdicts), None)


def _costs(arm: Arm, time: StepTime | None) -> Costs:
    total, frozen, trainable = (_first(arm, f"{kind}_parameters") for kind in ("total", "frozen", "trainable"))
    counted = _beside_plain(arm, "flops_per_token")
    return Costs(
        parameters=total,
        frozen=frozen,
        trainable=trainable,
        flops_ratio=counted if counted is not None else time.predicted if time else None,
        block_flops_ratio=_beside_plain(arm, "block_flops_per_token"),
        total_flops=_total_flops(arm),
        weight_bytes=None if total is None else checkpoint_bytes(total, 0),
        optimizer_bytes=None if trainable is None else checkpoint_bytes(0, trainable),
        checkpoint_bytes=None if total is None or trainable is None else checkpoint_bytes(total, trainable),
        peak_memory_bytes=_mean(arm, "peak_memory_bytes"),
    )


def _total_flops(arm: Arm) -> float | None:
    flops, tokens = _mean(arm, "flops_per_token"), _mean(arm, "tokens")
    return flops * tokens if flops and tokens else None


def _exposure(arm: Arm) -> Exposure:
    tokens, there = (_first(arm, key) for key in ("tokens", "train_tokens"))
    epochs = tokens / there if tokens and there else arm.settings.get("training.epochs")
    falls = []
    for curve in (run.curve("loss") for run in arm.runs):
        before = [value for step, value in curve.items() if 3 * step <= 2 * max(curve)]
        falls += [before[-1] - list(curve.values())[-1]] if before else []
    falling = bool(falls) and sum(falls) / len(falls) > FALLING_NATS
    return Exposure(tokens, there, epochs, _mean(arm, "text_share"), falling)


def _frozen_check(arm: Arm) -> str:
    if _first(arm, "frozen_parameters") == 0:
        return NO_WEIGHTS if arm.made.freezes else NOTHING_FROZEN
    return VERIFIED if all((run.result or {}).get("frozen_verified") is True for run in arm.runs) else NOT_VERIFIED


def _mean(arm: Arm, key: str) -> float | None:
    return spread(values).mean if (values := arm.facts(key)) else None


def _first(arm: Arm, key: str) -> int | None:
    return int(values[0]) if (values := arm.facts(key)) else None


def _beside_plain(arm: Arm, key: str) -> float | None:
    """A mean as a multiple of the plain baseline's."""
    base = arm if arm.is_baseline else arm.plain_baseline
    value, reference = _mean(arm, key), _mean(base, key) if base else None
    return value / reference if value and reference else None


def for_json(value: Any) -> Any:
    """As strict JSON has it: dataclasses as dictionaries, null for what is no number, dates and other kinds as text."""
    if isinstance(value, Note):
        return {"key": value.key, **{k: for_json(v) for k, v in value.values.items()}}
    if is_dataclass(value):
        return {f.name: for_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): for_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)
