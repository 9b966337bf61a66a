"""Published claims: what follows from each, by arithmetic and by our own runs. No torch.

A claim is data; `oelm.analysis.claims.checks` has a function per kind of claim, which works it out. Nothing here
knows an answer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from oelm.analysis.compare.arms import BASELINE, Arm
from oelm.analysis.compare.comparison import differences
from oelm.analysis.compare.results import Loaded
from oelm.analysis.compare.statistics import Gap, paired_gap
from oelm.errors import OelmError, unknown
from oelm.freezing.methods import Method, method

CONSISTENT, INCONSISTENT, IMPOSSIBLE, CIRCULAR = "consistent", "inconsistent", "impossible", "circular"
REPRODUCED, NOT_REPRODUCED, NOT_TESTED = "reproduced", "not reproduced", "not tested"
VERDICTS = (CONSISTENT, INCONSISTENT, IMPOSSIBLE, CIRCULAR, REPRODUCED, NOT_REPRODUCED, NOT_TESTED)

Claim = Mapping[str, Any]
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """What a check found out. `ours` is our own figure, where we have one."""

    published: str
    follows: str
    verdict: str
    reason: str
    ours: str | None = None


@dataclass(frozen=True)
class Verdict:
    """A finding beside the claim it is about."""

    id: str
    claim: str
    published: str
    follows: str
    ours: str | None
    verdict: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ModelFacts:
    """A model of the original study, as `oelm inspect` counts it; kept in the catalog, so that no torch is needed."""

    model: str
    """Its name for `oelm inspect`."""
    family: str
    width: int
    sequence_length: int
    parameters: int
    qk_parameters: int
    step_flops: int
    frozen_step_flops: int
    labels: int | None = None

    @property
    def saving_by_freezing(self) -> float:
        """The share of a training step's matmul FLOPs that frozen queries and keys save: an upper bound of the time."""
        return 1 - self.frozen_step_flops / self.step_flops


@dataclass(frozen=True)
class Evidence:
    """All that a check may look at: the catalog as plain data, and our finished runs."""

    experiments: Mapping[str, Entry]
    suites: Mapping[str, Sequence[str]]
    models: Mapping[str, Mapping[str, Any]]
    datasets: Mapping[str, Mapping[str, Any]]
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """The corpus that is read in place of another at a smaller scale."""
    loaded: Loaded | None = None

    def entry(self, name: str) -> Entry:
        if name not in self.experiments:
            raise unknown("experiment", name, self.experiments)
        return self.experiments[name]

    def figure(self, name: str, key: str) -> float:
        value = (self.entry(name).get("published") or {}).get(key)
        if value is None:
            raise OelmError(f"{name} has no published {key}")
        return float(value)

    def made(self, name: str) -> Method:
        """The method an experiment was really run with."""
        return method(self.entry(name)["arms"][0])

    def steps(self, name: str) -> int:
        """Optimizer steps of a published experiment."""
        entry = self.entry(name)
        training = entry["training"]
        if "max_steps" in training:
            return int(training["max_steps"])
        rows = self.datasets[entry["dataset"]]["train_rows"]
        return round(training["epochs"] * math.ceil(rows / training["batch_size"]) / training.get("accumulation", 1))

    def shape(self, model: str) -> "ModelFacts":
        if model not in self.models:
            raise unknown("model", model, self.models)
        return ModelFacts(**self.models[model])

    def pairs(self, dataset: str, first: str, second: str = BASELINE) -> "list[Pair]":
        """Our arms of two methods, trained alike on a data set, those with most seeds first."""
        names = {dataset, self.stand_ins.get(dataset, dataset)}
        found = [
            Pair(a, b, gap)
            for comparison in (self.loaded.comparisons if self.loaded else [])
            for a in comparison.arms
            for b in comparison.arms
            if a.dataset in names and (a.method, b.method) == (first, second) and not differences(a, b)
            if (gap := paired_gap(a.metric, a.scores, b.scores)) is not None
        ]
        return sorted(found, key=lambda pair: -pair.seeds)

    def pair(self, dataset: str, first: str, second: str = BASELINE) -> "Pair | None":
        return next(iter(self.pairs(dataset, first, second)), None)


@dataclass(frozen=True)
class Pair:
    """Two of our arms and the gap of the first to the second."""

    first: Arm
    second: Arm
    gap: Gap

    @property
    def seeds(self) -> int:
        return len(self.gap.by_seed)

    def __str__(self) -> str:
        interval = f" [{self.gap.t.low:+.1f}, {self.gap.t.high:+.1f}]" if self.gap.t else ""
        unit = "points" if self.first.metric.gap_in_points else "%"
        millions = (self.first.facts("total_parameters") or [0])[0] / 1e6
        size = f", {millions:.1f}M parameters" if millions else ""
        return (
            f"{self.first.method} {self.gap.value:+.1f} {unit}{interval} to {self.second.method} "
            f"({self.first.dataset}, {self.seeds} seed{'s' if self.seeds > 1 else ''}{size})"
        )


def judge(claims: Sequence[Claim], evidence: Evidence, checks: Mapping[str, Callable[..., Finding]]) -> list[Verdict]:
    """Every claim with what its check found."""
    verdicts = []
    for claim in claims:
        if claim["kind"] not in checks:
            raise unknown(f"kind of claim {claim['id']!r}", claim["kind"], checks)
        finding = checks[claim["kind"]](claim, evidence)
        verdicts.append(Verdict(id=claim["id"], claim=claim["claim"], **asdict(finding)))
    return verdicts


def rounds_to(value: float, said: float) -> bool:
    """Whether `value`, rounded to as many digits as were said, is what was said."""
    digits = len(f"{said:.6g}".partition(".")[2])
    return abs(value - said) <= 0.5 * 10**-digits + 1e-9
