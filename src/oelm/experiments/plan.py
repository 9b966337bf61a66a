"""From a catalog entry to the runs it stands for: arms × seeds, each a validated config and a folder."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oelm.data.tokens import TokenData
from oelm.errors import OelmError, unknown
from oelm.training.config import RunConfig


class DataRecipe(BaseModel):
    """What 'oelm data prepare' is asked for."""

    model_config = ConfigDict(extra="forbid")
    corpus: str
    tokenizer: str
    megabytes: float = 2.0
    validation_megabytes: float = 0.15


class Experiment(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    name: str
    summary: str
    data: DataRecipe
    arms: list[str] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRun:
    arm: str
    seed: int
    config: RunConfig
    folder: Path


def catalog() -> list[str]:
    """Names of all catalog entries."""
    files = resources.files("oelm.experiments").joinpath("catalog").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load(name: str) -> Experiment:
    if name not in catalog():
        raise unknown("experiment", name, catalog())
    text = resources.files("oelm.experiments").joinpath("catalog").joinpath(f"{name}.yaml").read_text("utf-8")
    try:
        return Experiment.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        raise OelmError(f"catalog entry {name!r} is not valid: {error}") from error


def plan(experiment: Experiment, data: TokenData, root: Path, *, threads: int | None = None) -> list[PlannedRun]:
    """Seed by seed, so that the first complete comparison comes early."""
    return [
        PlannedRun(
            arm,
            seed,
            RunConfig.parse(
                {
                    "method": arm,
                    "seed": seed,
                    "model": experiment.model,
                    "data": {"path": str(data.path), "fingerprint": data.fingerprint},
                    "training": experiment.training,
                    "runtime": {"threads": threads},
                }
            ),
            root / f"{arm}-{seed}",
        )
        for seed in experiment.seeds
        for arm in experiment.arms
    ]
