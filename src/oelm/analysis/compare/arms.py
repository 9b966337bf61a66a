"""What is compared, from small to large: a run, an arm, a comparison.

docs/architecture.md defines the words. Baselines of several lengths make a comparison of each length.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

from oelm.analysis.compare.statistics import METRICS, Metric, spread
from oelm.errors import OelmError
from oelm.freezing.methods import Method, method
from oelm.runs import RunFolder

if TYPE_CHECKING:
    from oelm.analysis.compare.record import ArmRecord

BASELINE = "baseline"
_RECORDING = ("log_every", "eval_every", "eval_tokens", "eval_budget", "checkpoint_every")
RECORDING_KEYS = {f"training.{key}" for key in _RECORDING}  # what is written down, not what is learned
RATE_KEYS = ("training.max_lr", "training.min_lr")
Rates = dict[float, float]  # score by learning rate; not a number where no run came to its end


@dataclass(frozen=True)
class Note:
    """Something the reader must know: the key of a sentence in `TEXTS` and what to fill in."""

    key: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    name: str  # the folder's name, with as many parents as tell it from the other runs
    folder: RunFolder
    config: dict[str, Any]
    state: str
    step: int
    result: dict[str, Any] | None
    environment: dict[str, Any]
    validations: list[dict[str, Any]]
    measured: tuple[dict[str, Any], ...] = ()  # each `step_time.json` beside it, or beside a copy of it

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
    def method(self) -> Method:
        """By its fields, so that a name, its alias and its written-out form are the same arm."""
        return method(self.config.get("method", BASELINE))

    @cached_property
    def method_key(self) -> str:
        """Equal for methods that do the same under one name."""
        return canonical({**self.method.to_dict(), "summary": "", "aliases": []})

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that decides what is learned, apart from method and seed, by dotted key."""
        kept = {k: v for k, v in self.config.items() if k not in ("method", "seed", "runtime")}
        flat = {key: value for key, value in flatten(kept).items() if key not in RECORDING_KEYS}
        # Twelve digits: a rate computed in two ways is one rate.
        flat |= {key: float(f"{value:.12g}") for key, value in flat.items() if isinstance(value, float)}
        if flat.get("data.fingerprint"):
            flat.pop("data.path", None)  # the same data may lie elsewhere on another machine
        return flat

    @property
    def metric(self) -> Metric:
        if metric := next((metric for metric in METRICS if metric.key in self.final), None):
            return metric
        raise OelmError(f"{self.folder.result_file} has none of {', '.join(m.name for m in METRICS)}")

    @cached_property
    def data_key(self) -> str:
        data = self.config.get("data") or {}
        return str((self.result or {}).get("data_fingerprint") or data.get("fingerprint") or data.get("path"))

    @property
    def arm_key(self) -> str:
        """Equal for runs of one arm."""
        return canonical([self.method_key, self.data_key, self.settings])

    def curve(self, key: str) -> dict[int, float]:
        found = {row["step"]: row.get(key) for row in self.validations}
        return {step: value for step, value in found.items() if is_number(value)}


@dataclass(frozen=True)
class Arm:
    """Finished runs of one method with one set of settings, one per seed."""

    label: str
    runs: list[Run]
    dataset: str
    metric: Metric
    baseline: "Arm | None" = None
    differences: list[Note] = field(default_factory=list)  # from its baseline: the gap is not the method's alone
    rates: Rates = field(default_factory=dict)  # empty unless a baseline was given the same learning rates

    @property
    def method(self) -> str:
        return self.made.name

    @property
    def made(self) -> Method:
        """What the method is made of."""
        return self.runs[0].method

    @property
    def is_baseline(self) -> bool:
        return self.method == BASELINE

    @property
    def is_unequal(self) -> bool:
        """Whether it has learned adapters or a start that its baseline lacks."""
        if self.baseline is None or self.made.is_trained:
            return False
        return self.baseline.made.equipment != self.made.equipment

    @property
    def settings(self) -> dict[str, Any]:
        return self.runs[0].settings

    @property
    def scores(self) -> dict[int, float]:
        """The metric over the whole validation set, by seed."""
        return {run.seed: run.final[self.metric.key] for run in self.runs}

    @property
    def score(self) -> float:
        """Mean over seeds."""
        return spread(list(self.scores.values())).mean

    @property
    def losses(self) -> dict[int, float]:
        """Nats per token on the whole validation set, by seed, for what is judged by perplexity."""
        known = self.scores.items() if self.metric.key == "perplexity" else ()
        return {seed: math.log(score) for seed, score in known if score > 0}

    @property
    def best_rate(self) -> float | None:
        found = {rate: score for rate, score in self.rates.items() if is_number(score)}
        return (max if self.metric.higher_is_better else min)(found, key=lambda rate: found[rate], default=None)

    @property
    def at_best_rate(self) -> bool:
        """Whether it is shown at a rate than which no other did better."""
        best = self.best_rate
        return best is not None and self.rates.get(self.settings[RATE_KEYS[0]]) == self.rates[best]

    @property
    def plain_baseline(self) -> "Arm | None":
        """The baseline of its baseline, if that has adapters of its own."""
        return self.baseline.plain_baseline or self.baseline if self.baseline else None

    def facts(self, key: str) -> list[float]:
        """A number of `result.json` (or of its `final`), from every run that has it."""
        found = [{**run.final, **(run.result or {})}.get(key) for run in self.runs]
        return [value for value in found if is_number(value)]


@dataclass(frozen=True)
class Comparison:
    """Arms on the same data, model and metric."""

    dataset: str
    model: str
    metric: Metric
    arms: list[Arm]
    ladder: list[Arm] = field(default_factory=list)  # plain baselines of several lengths: see `times`

    @cached_property
    def records(self) -> "list[ArmRecord]":
        """What is known of every arm, in the order of `arms`."""
        from oelm.analysis.compare.record import records_of  # which is made of comparisons

        return records_of(self)

    @property
    def family(self) -> str:
        """As the runs recorded it; those of before did not, and had encoders of texts only."""
        model = self.runs[0].config.get("model") or {}
        of_old = "encoder" if isinstance(model, dict) and model.get("name") else "decoder"
        return (self.runs[0].result or {}).get("model_family") or of_old

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]

    @property
    def true_entropy(self) -> float | None:
        """Nats per token of the corpus itself, where it is known: no model can do better."""
        known = [value for arm in self.arms for value in arm.facts("true_entropy")]
        return known[0] if known and self.metric.key == "perplexity" else None


def is_number(value: Any) -> TypeGuard[float]:
    """Not true, no NaN, and none of the integers that are larger than any float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def canonical(value: Any) -> str:
    """Equal for equal settings; 100 and 100.0 are one."""
    return json.dumps(json.loads(json.dumps(value, default=str), parse_int=float), sort_keys=True)
