"""A SLURM cluster through submitit: every run is a job; a job that is preempted or out of time is queued again."""

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm.errors import OelmError
from oelm.experiments.engines import Engine
from oelm.experiments.engines.cluster import Process, Scheduler, require, work
from oelm.experiments.plan import PlannedRun
from oelm.experiments.runner import Job, Watch, run_all
from oelm.training.config import with_settings

LOGS = Path("slurm")
DEFAULTS = {"timeout_min": 24 * 60, "cpus_per_task": 4, "slurm_signal_delay_s": 300}
"""The delay is the time between the warning and the end: enough to write a checkpoint."""


class Training:
    """What a SLURM job runs. When SLURM is about to end it, the run saves itself and the same job is queued again."""

    def __init__(self, folder: str, directory: str, nproc: int) -> None:
        self.folder, self.directory, self.nproc = folder, directory, nproc
        self.process: Process | None = None

    def __call__(self) -> int:
        return work(self.folder, self.directory, self.nproc, self._started)

    def _started(self, process: Process) -> None:
        """From now on pass SIGTERM (scancel), which submitit would ignore, on to the run; `work` waits for its end."""
        self.process = process
        signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())

    def checkpoint(self) -> Any:
        """submitit's hook. SLURM may end the job as soon as this returns, so that the run must have saved before."""
        import submitit

        if self.process is not None:
            self.process.terminate()
            # We are in a signal handler, in the middle of `process.wait()`, which cannot be called a second time.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Training(self.folder, self.directory, self.nproc))


@dataclass(frozen=True)
class Slurm(Engine):
    cluster: str = "slurm"
    """submitit's name of it; "local" runs the same jobs as processes here, for tests."""

    def __post_init__(self) -> None:
        if self.gpus is not None or self.slots is not None or self.address is not None:
            raise OelmError("--gpus, --slots and --address are not for --engine slurm; use --slurm KEY=VALUE")

    @property
    def parameters(self) -> dict[str, Any]:
        return with_settings({**DEFAULTS, "gpus_per_node": self.nproc, "name": "oelm"}, list(self.scheduler_options))

    def executor(self) -> Any:
        submitit = require("submitit", "slurm")
        try:
            executor = submitit.AutoExecutor(folder=LOGS, cluster=self.cluster)
            executor.update_parameters(**self.parameters)
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            raise OelmError(f"--engine slurm: {' '.join(str(error).split())[:300]}") from None
        return executor

    def run(self, planned: Sequence[PlannedRun], watch: Watch | None = None) -> list[Job]:
        executor = self.executor()

        def submit(job: Job) -> Any:
            return executor.submit(Training(str(job.folder.path), os.getcwd(), self.nproc))

        def exit_code(task: Any) -> int | None:
            return task.result() if task.done() else None

        return run_all(planned, Scheduler(submit, exit_code, lambda task: task.cancel()), watch)
