"""Where a plan is worked off: this machine, a Ray cluster, a SLURM cluster. Each engine is a file of its own."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oelm.errors import unknown
from oelm.experiments.plan import PlannedRun
from oelm.experiments.runner import Job, Watch

ENGINES = ("local", "ray", "slurm")


@dataclass(frozen=True)
class Engine(ABC):
    """Its options are those of the command line; each engine refuses what is not for it."""

    gpus: Sequence[int] | None = None
    slots: int | None = None
    nproc: int = 1
    address: str | None = None
    scheduler_options: Sequence[str] = ()
    """submitit parameters, e.g. slurm_partition=gpu or timeout_min=600."""

    @property
    def threads(self) -> int | None:
        """CPU threads that each run should use; None leaves it to torch."""
        return None

    @abstractmethod
    def run(self, planned: Sequence[PlannedRun], watch: Watch | None = None) -> list[Job]:
        """Run what is not finished, as `oelm.experiments.runner.run_all` does."""


def find_engine(name: str, **options: Any) -> Engine:
    """The engine of a name, with these of an engine's options."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    module = importlib.import_module(f"oelm.experiments.engines.{name}")
    return getattr(module, name.capitalize())(**options)
