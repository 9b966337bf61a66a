"""From experiments to the runs they stand for: arms × variants × seeds, each a validated config and a folder.

A run is known by what it computes. Two experiments that ask for the same computation share one folder, so that nothing
is trained twice, whatever it was called when it was first asked for.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.experiments.entries import Experiment, Variant, merged
from oelm.lab import with_positions
from oelm.runs import config_differences, find_runs, folder_name
from oelm.training.config import RunConfig, with_settings


@dataclass(frozen=True)
class PlannedRun:
    arm: str
    seed: int
    config: RunConfig
    folder: Path
    experiment: str = ""


@dataclass(frozen=True)
class PreparedData:
    """What a plan must know of prepared data: where it is or will be, and its fingerprint once it is there."""

    path: Path
    fingerprint: str | None = None


def plan(
    experiment: Experiment,
    data: TokenData | PreparedData,
    root: Path,
    *,
    threads: int | None = None,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
) -> list[PlannedRun]:
    """Seed by seed, so that the first complete comparison comes early."""
    _require_distinct(experiment, settings)
    variants = experiment.variants or [Variant(name="")]
    planned = []
    for seed, variant, arm in product(seeds or experiment.seeds, variants, experiment.arms):
        if variant.arms is not None and arm not in variant.arms:
            continue
        values: dict[str, Any] = {
            "method": arm,
            "seed": seed,
            "model": _model(merged(experiment.model, variant.model)),
            "data": {"path": str(data.path), "fingerprint": data.fingerprint},
            "training": merged(experiment.training, variant.training),
            "runtime": {"threads": threads},
        }
        try:
            values = with_settings(values, list(settings))
            if experiment.own:
                values |= with_positions({"model": values["model"]})
            config = RunConfig.parse(values)
        except OelmError as error:
            raise OelmError(f"{experiment.where}: {error}") from None
        folder = root / folder_name("-".join(filter(None, [arm, variant.name, str(seed)])))
        planned.append(PlannedRun(arm, seed, config, folder, experiment.name))
    return planned


def several(config: RunConfig, methods: Sequence[str], seeds: Sequence[int], root: Path) -> list[PlannedRun]:
    """One config with each of these methods and seeds: an experiment without a file."""
    planned = []
    for seed, name in product(seeds, methods):
        one = RunConfig.parse({**config.to_dict(), "method": name, "seed": seed})
        folder = root / folder_name(f"{one.method_name}-{seed}")
        planned.append(PlannedRun(one.method_name, seed, one, folder, root.name))
    return planned


def share(planned: Iterable[PlannedRun], root: Path) -> list[PlannedRun]:
    """Give runs that compute the same the same folder: one below `root` that is there already, or the first planned.

    A planned folder that is there with another config stays planned; whoever makes it refuses it, or makes it anew.
    """
    planned = list(planned)
    known: dict[Path, dict[str, Any]] = {}
    for folder in find_runs(root):
        with contextlib.suppress(OelmError):  # an unreadable folder is nobody's twin
            known[folder.path] = folder.config()
    known.update({run.folder: run.config.to_dict() for run in planned if run.folder in known})
    shared: list[PlannedRun] = []
    for run in planned:
        wanted = run.config.to_dict()
        if run.folder not in known:
            alike = ((f, c) for f, c in known.items() if all(c.get(key) == wanted[key] for key in ("seed", "method")))
            run = replace(run, folder=next((f for f, c in alike if not config_differences(c, wanted)), run.folder))
            known.setdefault(run.folder, wanted)
        shared.append(run)
    return shared


def unique(planned: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Every folder once, all runs of one seed before those of the next."""
    first: dict[Path, PlannedRun] = {}
    for run in planned:
        first.setdefault(run.folder, run)
    return sorted(first.values(), key=lambda run: run.seed)


def _require_distinct(experiment: Experiment, settings: Sequence[str]) -> None:
    """The runs of a plan differ in method and seed; no setting may make them all the same."""
    ways = {"seed": "choose seeds with --seeds", "method": f"its arms say which ({', '.join(experiment.arms)})"}
    for setting in settings:
        key = setting.partition("=")[0].partition(".")[0]
        if key in ways:
            raise OelmError(f"--set {setting} would give every run of {experiment.name} the same {key}; {ways[key]}")


def _model(section: dict[str, Any]) -> dict[str, Any]:
    """An override that a scale took back is none."""
    overrides = section.get("overrides", {})
    if not isinstance(overrides, dict):
        return section  # refused with the rest of the config
    return {**section, "overrides": {key: value for key, value in overrides.items() if value is not None}}
