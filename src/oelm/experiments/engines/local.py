"""This machine: GPUs or shares of the CPU, one process per run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from oelm.errors import OelmError
from oelm.experiments.engines import Engine
from oelm.experiments.plan import PlannedRun
from oelm.experiments.runner import Job, LocalWorkers, Slot, Watch, local_slots, run_all


@dataclass(frozen=True)
class Local(Engine):
    def __post_init__(self) -> None:
        if self.address is not None or self.scheduler_options:
            raise OelmError("--address is for --engine ray and --slurm for --engine slurm; leave them out")

    @cached_property
    def places(self) -> list[Slot]:
        return local_slots(self.gpus, self.slots, self.nproc)

    @property
    def threads(self) -> int | None:
        from oelm.training.environment import usable_cores

        return None if self.places[0].gpus else max(1, usable_cores() // (len(self.places) * self.nproc))

    def run(self, planned: Sequence[PlannedRun], watch: Watch | None = None) -> list[Job]:
        return run_all(planned, LocalWorkers(self.places, self.nproc), watch)
