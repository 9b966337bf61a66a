"""What is compared, from small to large: a run, an arm, a study.

A *run* is one folder. An *arm* is one method with one set of settings, over seeds. A *study* is the arms that share
data, model and metric, so that they may stand in one figure.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from oelm.analysis.statistics import METRICS, Metric
from oelm.analysis.texts import Note
from oelm.errors import OelmError
from oelm.methods import METHODS, method
from oelm.modifiers import equal_baseline
from oelm.runs import RunFolder

BASELINE = "baseline"
RECORDING_KEYS = {
    f"training.{k}" for k in ("log_every", "eval_every", "eval_tokens", "eval_budget", "checkpoint_every")
}
"""They decide what is written down, not what is learned: they neither split an arm nor spoil a comparison."""


@dataclass(frozen=True)
class Run:
    name: str
    """The folder's name, with as many parents as tell it from the other runs."""
    folder: RunFolder
    config: dict[str, Any]
    state: str
    step: int
    result: dict[str, Any] | None
    environment: dict[str, Any]
    validations: list[dict[str, Any]]
    clock: list[dict[str, Any]]

    @property
    def seed(self) -> int:
        return self.config.get("seed", 0)

    @property
    def max_steps(self) -> int | None:
        return (self.config.get("training") or {}).get("max_steps")

    @property
    def final(self) -> dict[str, Any]:
        return (self.result or {}).get("final") or {}

    @cached_property
    def method(self) -> dict[str, Any]:
        """The method's fields, so that a name, its alias and its written-out form are the same arm."""
        spec = self.config.get("method", BASELINE)
        try:
            return method(spec).to_dict()
        except OelmError:  # a method of a newer or a changed version is still a method
            return dict(spec) if isinstance(spec, dict) else {"name": str(spec)}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that decides what is learned, apart from method and seed, by dotted key."""
        kept = {k: v for k, v in self.config.items() if k not in ("method", "seed", "runtime")}
        flat = {k: v for k, v in flatten(kept).items() if k not in RECORDING_KEYS}
        if flat.get("data.fingerprint"):
            flat.pop("data.path", None)  # the same data may lie elsewhere on another machine
        return flat

    @property
    def metric(self) -> Metric:
        for metric in METRICS:
            if metric.key in self.final:
                return metric
        raise OelmError(f"{self.folder.result_file} has none of {', '.join(m.name for m in METRICS)}")

    @cached_property
    def data_key(self) -> str:
        data = self.config.get("data") or {}
        return str((self.result or {}).get("data_fingerprint") or data.get("fingerprint") or data.get("path"))

    @property
    def arm_key(self) -> str:
        """Equal for runs of one arm."""
        return _canonical([self.method, self.data_key, self.settings])

    def curve(self, key: str) -> dict[int, float]:
        return {row["step"]: row[key] for row in self.validations if isinstance(row.get(key), int | float)}

    def seconds_at(self, step: int) -> float | None:
        """Training time until `step`, without validation."""
        if not self.clock:
            return None
        steps, seconds = [row["step"] for row in self.clock], [row["seconds"] for row in self.clock]
        return float(np.interp(step, [0, *steps], [0.0, *seconds]))


@dataclass(frozen=True)
class Arm:
    """Finished runs of one method with one set of settings, one per seed."""

    label: str
    runs: list[Run]
    dataset: str
    metric: Metric
    baseline: "Arm | None" = None
    differences: list[Note] = field(default_factory=list)
    """Settings in which this arm is not like its baseline: then the gap is not the method's alone."""
    number: int = 0
    """Its place among the study's arms of the same method."""

    @property
    def method(self) -> str:
        return self.runs[0].method["name"]

    @property
    def is_baseline(self) -> bool:
        return self.method == BASELINE

    @property
    def settings(self) -> dict[str, Any]:
        return self.runs[0].settings

    @property
    def scores(self) -> dict[int, float]:
        """The metric over the whole validation set, by seed."""
        return {run.seed: run.final[self.metric.key] for run in self.runs}

    def facts(self, key: str) -> list[float]:
        """A number of `result.json` (or of its `final`), from every run that has it."""
        found = [{**(run.result or {}), **run.final}.get(key) for run in self.runs]
        return [value for value in found if isinstance(value, int | float) and math.isfinite(value)]


@dataclass(frozen=True)
class Study:
    """Arms on the same data, model and metric."""

    dataset: str
    model: str
    metric: Metric
    arms: list[Arm]

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]

    @property
    def true_entropy(self) -> float | None:
        """Nats per token of the corpus itself, where it is known: no model can do better."""
        known = [r.result["true_entropy"] for r in self.runs if r.result and r.result.get("true_entropy") is not None]
        return known[0] if known and self.metric.key == "perplexity" else None


def group_into_studies(runs: list[Run]) -> list[Study]:
    """Finished runs by data, model and metric, then by method and settings."""
    groups: dict[tuple[str, str, str], dict[str, list[Run]]] = {}
    for run in runs:
        study = groups.setdefault((run.data_key, _canonical(run.config.get("model")), run.metric.name), {})
        study.setdefault(run.arm_key, []).append(run)
    studies = [_study([sorted(arm, key=lambda run: run.seed) for arm in arms.values()]) for arms in groups.values()]
    return sorted(studies, key=lambda study: (study.dataset, study.model))


def _study(groups: list[list[Run]]) -> Study:
    order = list(METHODS)
    groups.sort(key=lambda runs: order.index(runs[0].method["name"]) if runs[0].method["name"] in order else len(order))
    first, metric = groups[0][0], groups[0][0].metric
    data = first.config.get("data") or {}
    dataset = str((first.result or {}).get("dataset") or Path(str(data.get("path"))).name)
    arms: list[Arm] = []
    for runs in groups:
        number = sum(arm.method == runs[0].method["name"] for arm in arms)
        arms.append(Arm(_label(runs, groups), runs, dataset, metric, number=number))
    compared = [_beside_its_baseline(arm, arms) for arm in arms]
    model = first.config.get("model") or {}
    encoder = Path(str(model.get("encoder") or "?")).name if isinstance(model, dict) else str(model)
    size = str(model.get("size") or model.get("name") or encoder) if isinstance(model, dict) else str(model)
    changes = (model.get("overrides") or {}) if isinstance(model, dict) else {}
    return Study(dataset, ", ".join([size, *(f"{k} {v}" for k, v in changes.items())]), metric, compared)


def _beside_its_baseline(arm: Arm, arms: list[Arm]) -> Arm:
    """The baseline with the same pieces, else the plain one, trained most alike; what still differs is remembered."""
    if arm.is_baseline:
        return arm
    equal = [other for other in arms if other.method == equal_baseline(arm.method) and other is not arm]
    baselines = equal or [other for other in arms if other.is_baseline]
    if not baselines:
        return arm
    nearest = min(baselines, key=lambda other: len(_differences(arm, other)))
    return replace(arm, baseline=nearest, differences=_differences(arm, nearest))


def _differences(arm: Arm, other: Arm) -> list[Note]:
    keys = dict.fromkeys([*arm.settings, *other.settings])
    return [
        Note("different_settings", {"arm": arm.label, "key": key, "value": a, "baseline": other.label, "other": b})
        for key in keys
        if (a := arm.settings.get(key)) != (b := other.settings.get(key))
    ]


def _label(runs: list[Run], groups: list[list[Run]]) -> str:
    """The method's name, and what tells the arm from other arms of that method."""
    name = runs[0].method["name"]
    others = [group[0] for group in groups if group[0].method["name"] == name]
    keys = dict.fromkeys(key for run in others for key in run.settings)
    told = [k for k in keys if len({_canonical(run.settings.get(k)) for run in others}) > 1]
    # Everything derived from another key (min_lr from max_lr) would only repeat it.
    told = [k for k in told if not (k == "training.min_lr" and "training.max_lr" in told)]
    parts = [f"{k.rpartition('.')[2]}={runs[0].settings.get(k)}" for k in told]
    if not parts and len({_canonical(run.method) for run in others}) > 1:
        parts = [f"#{1 + [group[0] for group in groups if group[0] in others].index(runs[0])}"]
    return f"{name} ({', '.join(parts)})" if parts else name


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
