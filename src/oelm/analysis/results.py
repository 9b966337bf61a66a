"""From run folders to arms that can be compared: `load_runs(["runs/demo"])`.

A *run* is one folder. An *arm* is one method with one set of settings, over seeds. A *study* is the arms that share
data, model and metric, so that they may stand in one figure. What cannot be read is skipped and named; what is not
finished is listed and never averaged.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from oelm.analysis.statistics import METRICS, Metric
from oelm.errors import OelmError
from oelm.methods import METHODS, method
from oelm.runs import DEAD, FINISHED, RunFolder, find_runs

BASELINE = "baseline"
RECORDING_KEYS = {
    f"training.{k}" for k in ("log_every", "eval_every", "eval_tokens", "eval_budget", "checkpoint_every")
}
"""They decide what is written down, not what is learned: they neither split an arm nor spoil a comparison."""


@dataclass(frozen=True)
class Note:
    """Something the reader must know: the key of a sentence in `texts` and what to fill in."""

    key: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    path: Path
    note: Note

    @property
    def reason(self) -> str:
        from oelm.analysis.texts import texts  # texts needs Note, which lives here

        return texts("en").note(self.note)


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
        flat = {k: v for k, v in _flatten(kept).items() if k not in RECORDING_KEYS}
        if flat.get("data.fingerprint"):
            flat.pop("data.path", None)  # the same data may lie elsewhere on another machine
        return flat

    @cached_property
    def data_key(self) -> str:
        data = self.config.get("data") or {}
        return str((self.result or {}).get("data_fingerprint") or data.get("fingerprint") or data.get("path"))

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


@dataclass(frozen=True)
class StepTime:
    """Step time as a multiple of the reference's. Without an interleaved measurement there is no interval."""

    ratio: float
    low: float | None = None
    high: float | None = None
    predicted: float | None = None
    interleaved: bool = False
    is_reference: bool = False


@dataclass(frozen=True)
class Loaded:
    runs: list[Run]
    skipped: list[Skipped]
    step_times: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """Interleaved measurements (`step_time.json`) by the folder they lie in, beside the runs."""
    samples: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.result is not None]

    @property
    def incomplete(self) -> list[Run]:
        return [run for run in self.runs if run.result is None]

    @cached_property
    def studies(self) -> list[Study]:
        return _studies(self.finished)

    @property
    def arms(self) -> list[Arm]:
        return [arm for study in self.studies for arm in study.arms]

    def step_time(self, arm: Arm) -> StepTime | None:
        """The interleaved measurement if there is one; else the plain ratio of median step times, marked as such."""
        for run in arm.runs:
            measured = self.step_times.get(run.folder.path.resolve().parent)
            if measured and measured["reference"] == arm.method:
                return StepTime(1.0, interleaved=True, is_reference=True)
            if measured and arm.method in measured["arms"]:
                values = {k: measured["arms"][arm.method].get(k) for k in ("ratio", "low", "high", "predicted")}
                return StepTime(**values, interleaved=True)
        if arm.is_baseline:
            return StepTime(1.0, is_reference=True)
        own = arm.facts("median_step_time")
        base = arm.baseline.facts("median_step_time") if arm.baseline else []
        return StepTime(float(np.median(own) / np.median(base))) if own and base else None


def load_runs(paths: str | Path | Iterable[str | Path]) -> Loaded:
    """Read run folders, and all run folders below other folders."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    runs: dict[Path, Run] = {}
    skipped: list[Skipped] = []
    beside: dict[Path, None] = {}
    for path in map(Path, given):
        folders = _run_folders(path)
        if not folders:
            skipped.append(Skipped(path, Note("skip_no_run" if path.exists() else "skip_missing")))
        for folder in folders:
            beside[folder.path.resolve().parent] = None
            try:
                runs.setdefault(folder.path.resolve(), _read(folder))
            except (OelmError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                skipped.append(Skipped(folder.path, Note("skip_unreadable", {"error": _one_line(error)})))
    kept, repeated = _one_per_seed(_named(list(runs.values())))
    step_times, samples = _read_beside(beside, skipped)
    return Loaded(kept, skipped + repeated, step_times, samples)


def require_finished(paths: str | Path | Iterable[str | Path]) -> Loaded:
    """`load_runs`, refusing to go on with nothing to show."""
    loaded = load_runs(paths)
    if loaded.finished:
        return loaded
    waiting = [f"{run.folder.path} is {run.state} at step {run.step}" for run in loaded.incomplete]
    found = waiting + [f"{skipped.path}: {skipped.reason}" for skipped in loaded.skipped]
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    way_out = "wait for it or 'oelm resume' it" if waiting else "give folders made by 'oelm train' or 'oelm demo'"
    raise OelmError(f"no finished run to show: {'; '.join(found[:3])}{more}; {way_out}")


def _run_folders(path: Path) -> list[RunFolder]:
    """Also folders that were runs once: a missing config is a reason to be named, not to be overlooked."""
    found = {folder.path for folder in find_runs(path)}
    for trace in ("status.json", "result.json"):
        found |= {file.parent for file in path.rglob(trace) if "checkpoints" not in file.parts}
    return [RunFolder(folder) for folder in sorted(found)]


def _read(folder: RunFolder) -> Run:
    config, result, status = RunFolder.open(folder.path).config(), folder.result(), folder.status()
    if not isinstance(config, dict):
        raise OelmError(f"{folder.config_file} holds no settings")
    run = Run(
        name=folder.name,
        folder=folder,
        config=config,
        state=FINISHED if result is not None else {FINISHED: DEAD}.get(status["state"], status["state"]),
        step=(result or status).get("steps") or status.get("step", 0),
        result=result,
        environment=folder.environment() or {},
        validations=folder.metrics("validation"),
        clock=folder.clock(),
    )
    if result is not None:
        value = run.final[_metric(run).key]
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise OelmError(f"{folder.result_file}: {_metric(run).name} is {value!r}")
    return run


def _metric(run: Run) -> Metric:
    for metric in METRICS:
        if metric.key in run.final:
            return metric
    raise OelmError(f"{run.folder.result_file} has none of {', '.join(m.name for m in METRICS)}")


def _named(runs: list[Run]) -> list[Run]:
    parts = [run.folder.path.resolve().parts for run in runs]
    depth = 1
    while len({path[-depth:] for path in parts}) < len(parts):
        depth += 1
    return [replace(run, name="/".join(path[-depth:])) for run, path in zip(runs, parts, strict=True)]


def _one_per_seed(runs: list[Run]) -> tuple[list[Run], list[Skipped]]:
    """The same computation in two folders is one observation, not two."""
    first: dict[str, Run] = {}
    kept, repeated = [], []
    for run in runs:
        twin = first.setdefault(f"{_arm_key(run)} seed {run.seed}", run) if run.result is not None else run
        if twin is run:
            kept.append(run)
        else:
            repeated.append(Skipped(run.folder.path, Note("skip_repeated", {"path": str(twin.folder.path)})))
    return kept, repeated


def _read_beside(folders: Iterable[Path], skipped: list[Skipped]) -> tuple[dict[Path, dict[str, Any]], dict[str, Any]]:
    step_times: dict[Path, dict[str, Any]] = {}
    samples: dict[str, Any] = {}
    for folder in folders:
        for name in ("step_time.json", "samples.json"):
            file = folder / name
            if not file.is_file():
                continue
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                if name == "samples.json":
                    samples.update(content)
                else:
                    ratios = [float(arm["ratio"]) for arm in content["arms"].values()]
                    step_times[folder] = {"reference": BASELINE, **content} if ratios else {}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                skipped.append(Skipped(file, Note("skip_unreadable", {"error": _one_line(error)})))
    return {folder: content for folder, content in step_times.items() if content}, samples


# Arms and studies


def _studies(runs: list[Run]) -> list[Study]:
    groups: dict[tuple[str, str, str], dict[str, list[Run]]] = {}
    for run in runs:
        study = groups.setdefault((run.data_key, _canonical(run.config.get("model")), _metric(run).name), {})
        study.setdefault(_arm_key(run), []).append(run)
    studies = [_study([sorted(arm, key=lambda run: run.seed) for arm in arms.values()]) for arms in groups.values()]
    return sorted(studies, key=lambda study: (study.dataset, study.model))


def _study(groups: list[list[Run]]) -> Study:
    order = list(METHODS)
    groups.sort(key=lambda runs: order.index(runs[0].method["name"]) if runs[0].method["name"] in order else len(order))
    first, metric = groups[0][0], _metric(groups[0][0])
    data = first.config.get("data") or {}
    dataset = str((first.result or {}).get("dataset") or Path(str(data.get("path"))).name)
    arms: list[Arm] = []
    for runs in groups:
        number = sum(arm.method == runs[0].method["name"] for arm in arms)
        arms.append(Arm(_label(runs, groups), runs, dataset, metric, number=number))
    compared = [_beside_its_baseline(arm, [other for other in arms if other.is_baseline]) for arm in arms]
    model = first.config.get("model") or {}
    size = str(model.get("size") or model.get("name") or "?") if isinstance(model, dict) else str(model)
    changes = (model.get("overrides") or {}) if isinstance(model, dict) else {}
    return Study(dataset, ", ".join([size, *(f"{k} {v}" for k, v in changes.items())]), metric, compared)


def _beside_its_baseline(arm: Arm, baselines: list[Arm]) -> Arm:
    """The baseline trained most alike; what still differs is remembered."""
    if arm.is_baseline or not baselines:
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


def _arm_key(run: Run) -> str:
    return _canonical([run.method, run.data_key, run.settings])


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(_flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, OelmError | OSError) else f"{type(error).__name__}: {text}"
