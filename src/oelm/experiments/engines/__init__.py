"""Where a plan is worked off: this machine, a Ray cluster, a SLURM cluster. Each engine is a file of its own."""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from oelm.errors import unknown
from oelm.experiments.plan import PlannedRun
from oelm.experiments.runner import Job, Watch

ENGINES = ("local", "ray", "slurm")


class Engine(Protocol):
    @property
    def threads(self) -> int | None:
        """CPU threads that each run should use; None leaves it to torch."""

    def run(self, planned: Sequence[PlannedRun], watch: Watch | None = None) -> list[Job]:
        """Run what is not finished, as `oelm.experiments.runner.run_all` does."""


def find_engine(name: str, **options: Any) -> Engine:
    """The engine of a name; `options` are gpus, slots, nproc, address and scheduler_options, as on the command line."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    module = importlib.import_module(f"oelm.experiments.engines.{name}")
    return getattr(module, name.capitalize())(**options)
