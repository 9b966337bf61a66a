"""What the check of a published claim may look at: the catalog as plain data, and our own runs. No torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oelm.analysis.compare.arms import BASELINE, Arm
from oelm.analysis.compare.comparison import differences
from oelm.analysis.compare.results import Loaded
from oelm.analysis.compare.statistics import Gap, paired_gap
from oelm.freezing.methods import Method, method

Claim = Mapping[str, Any]


@dataclass(frozen=True)
class ModelFacts:
    """A model of the original study, as `oelm inspect` counts it; kept in the catalog, so that no torch is needed."""

    model: str  # its name for `oelm inspect`
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

    @property
    def qk_share(self) -> float:
        return self.qk_parameters / self.parameters


@dataclass(frozen=True)
class Evidence:
    experiments: Mapping[str, Mapping[str, Any]]
    suites: Mapping[str, Sequence[str]]
    models: Mapping[str, Mapping[str, Any]]
    datasets: Mapping[str, Mapping[str, Any]]
    stand_ins: Mapping[str, str] = field(default_factory=dict)  # the corpus that is read in place of another
    loaded: Loaded | None = None

    def figure(self, name: str, key: str) -> float:
        """A published one."""
        return float(self.experiments[name]["published"][key])

    def made(self, name: str) -> Method:
        """The method an experiment was really run with."""
        return method(self.experiments[name]["arms"][0])

    def steps(self, name: str) -> int:
        """Optimizer steps of a published experiment."""
        entry, training = self.experiments[name], self.experiments[name]["training"]
        if "max_steps" in training:
            return int(training["max_steps"])
        rows = self.datasets[entry["dataset"]]["train_rows"]
        return round(training["epochs"] * math.ceil(rows / training["batch_size"]) / training.get("accumulation", 1))

    def shape(self, model: str) -> ModelFacts:
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
        return sorted(found, key=lambda pair: -len(pair.gap.by_seed))

    def pair(self, dataset: str, first: str, second: str = BASELINE) -> "Pair | None":
        return next(iter(self.pairs(dataset, first, second)), None)


@dataclass(frozen=True)
class Pair:
    """Two of our arms and the gap of the first to the second."""

    first: Arm
    second: Arm
    gap: Gap

    def __str__(self) -> str:
        interval = f" [{self.gap.t.low:+.1f}, {self.gap.t.high:+.1f}]" if self.gap.t else ""
        unit = "points" if self.first.metric.gap_in_points else "%"
        seeds = f"{len(self.gap.by_seed)} seed{'s' if len(self.gap.by_seed) > 1 else ''}"
        size = f", {millions:.1f}M parameters" if (millions := millions_of(self.first)) else ""
        what = f"{self.first.method} {self.gap.value:+.1f} {unit}{interval} to {self.second.method}"
        return f"{what} ({self.first.dataset}, {seeds}{size})"


def millions_of(arm: Arm) -> float:
    """Parameters; 0 where no run recorded them."""
    return (arm.facts("total_parameters") or [0])[0] / 1e6


def rounds_to(value: float, said: float) -> bool:
    """Whether `value`, rounded to as many digits as were said, is what was said."""
    digits = len(f"{said:.6g}".partition(".")[2])
    return abs(value - said) <= 0.5 * 10**-digits + 1e-9
