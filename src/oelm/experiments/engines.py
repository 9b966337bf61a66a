"""Where a plan is worked off: this machine, a Ray cluster, a SLURM cluster.

The run folders lie on a file system that all machines of a cluster see. A scheduler only decides where `work` is
called; everything else is known through the folders, as on one machine.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from oelm.errors import OelmError, unknown
from oelm.experiments.plan import PlannedRun
from oelm.experiments.runner import GRACE_SECONDS, STOPPED, Job, LocalWorkers, Slot, Watch, local_slots, run_all, start
from oelm.runs import RunFolder
from oelm.training.config import with_settings
from oelm.training.environment import usable_cores

Process: TypeAlias = "subprocess.Popen[bytes]"
LOST_LOCK_SECONDS = 180  # how long the lock of a lost machine may last on a shared file system
RAY_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Read when Ray is imported, on every system: "0" has a cluster of one's own listen on the loopback interface only.
Whoever can reach a Ray cluster can run anything on it."""
SLURM_LOGS = Path("slurm")
SLURM_DEFAULTS = {"timeout_min": 24 * 60, "cpus_per_task": 4, "slurm_signal_delay_s": 300}
"""The delay is the time between the warning and the end: enough to write a checkpoint."""


@dataclass(frozen=True)
class Engine(ABC):
    """Its options are those of the command line; each engine refuses what is not for it."""

    gpus: Sequence[int] | None = None
    slots: int | None = None
    nproc: int = 1
    address: str | None = None
    scheduler_options: Sequence[str] = ()  # submitit parameters, e.g. slurm_partition=gpu or timeout_min=600

    @property
    def threads(self) -> int | None:
        """CPU threads that each run should use; None leaves it to torch."""
        return None

    @abstractmethod
    def run(self, planned: Sequence[PlannedRun], watch: Watch | None = None) -> list[Job]:
        """Run what is not finished, as `oelm.experiments.runner.run_all` does."""


@dataclass(frozen=True)
class Local(Engine):
    """This machine: GPUs or shares of the CPU, one process per run."""

    def __post_init__(self) -> None:
        if self.address is not None or self.scheduler_options:
            raise OelmError("--address is for --engine ray and --slurm for --engine slurm; leave them out")

    @cached_property
    def places(self) -> list[Slot]:
        return local_slots(self.gpus, self.slots, self.nproc)

    @property
    def threads(self) -> int | None:
        return None if self.places[0].gpus else max(1, usable_cores() // (len(self.places) * self.nproc))

    def run(self, planned: Sequence[PlannedRun], watch: Watch | None = None) -> list[Job]:
        return run_all(planned, LocalWorkers(self.places, self.nproc), watch)


@dataclass(frozen=True)
class Scheduler:
    """A cluster in three verbs. All runs are handed over at once: the queue is its own."""

    submit: Callable[[Job], Any]  # hand a run over; returns the task
    exit_code: Callable[[Any], int | None]
    """Of a task, None while it waits or runs; an exception is what went wrong with it."""
    cancel: Callable[[Any], None]

    def advance(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.task is None and not job.done:
                job.task = self.submit(job)
        for job in (job for job in jobs if job.at_work):
            try:
                code = self.exit_code(job.task)
            except Exception as error:  # schedulers raise many unrelated types
                code = 1
                with job.folder.output_file.open("a") as output:
                    output.write(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}\n")
            if code is None:
                job.look()
            else:
                job.ended(code)

    def stop(self, jobs: list[Job]) -> None:
        running = [job for job in jobs if job.at_work]
        for job in running:
            with contextlib.suppress(Exception):
                self.cancel(job.task)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(job.folder.locked for job in running) and time.monotonic() < deadline:
            time.sleep(0.2)
        for job in running:
            job.look()
            job.exit_code = STOPPED[0]


def work(folder: str | Path, directory: str, nproc: int = 1, started: Callable[[Process], None] | None = None) -> int:
    """Called on a machine of the cluster: train in a process of its own, which `started` is told of; its exit code."""
    os.chdir(directory)
    run = RunFolder.open(folder)
    deadline = time.monotonic() + LOST_LOCK_SECONDS
    while run.holder() and time.monotonic() < deadline:  # the machine that was lost, or one that is still saving
        time.sleep(0.5)
    run.disown()  # the scheduler has given the run to us
    process = start(run, nproc=nproc)
    try:
        if started is not None:
            started(process)
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


@dataclass(frozen=True)
class Ray(Engine):
    """Every run is a task; when its machine is lost, Ray calls it again elsewhere and the run resumes."""

    def __post_init__(self) -> None:
        if self.gpus is not None or self.slots is not None:
            raise OelmError("--gpus and --slots are for --engine local; Ray knows the cluster's GPUs and cores")

    @property
    def threads(self) -> int | None:
        return 1  # one core per run, as the tasks ask for

    def run(self, planned: Sequence[PlannedRun], watch: Watch | None = None) -> list[Job]:
        if not (self.address or os.environ.get("RAY_ADDRESS")):
            os.environ.setdefault(RAY_CLUSTERS, "0")
        ray = _require("ray", "ray")
        ours = not ray.is_initialized()
        if ours:
            try:
                ray.init(address=self.address, log_to_driver=False, include_dashboard=False, configure_logging=False)
            except Exception as error:  # ConnectionError, RuntimeError, ValueError: all mean the same to a user
                where = f"the Ray cluster at {self.address}" if self.address else "a local Ray cluster"
                raise OelmError(f"{where} cannot be reached or started: {' '.join(str(error).split())[:200]}") from None
        try:
            return run_all(planned, _ray_scheduler(ray, self.nproc), watch)
        finally:
            if ours:
                ray.shutdown()


def _ray_scheduler(ray: Any, nproc: int) -> Scheduler:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    kinds = ("GPU", "CPU") if any(node.get("GPU") for node in nodes) else ("CPU",)
    room = max((min(node.get(kind, 0) for kind in kinds) for node in nodes), default=0)
    if nproc > room:  # it would wait for ever
        needed = f"so many {' and '.join(f'{kind}s' for kind in kinds)} on one machine"
        raise OelmError(f"--nproc {nproc} needs {needed}, but none of the Ray cluster has more than {room:g}; lower it")
    resources = {f"num_{kind.lower()}s": nproc for kind in kinds}
    # Only losing the machine or the worker is retried; a run that fails by itself returns its exit code.
    task = ray.remote(**resources, max_retries=-1)(work)

    def submit(job: Job) -> Any:
        return task.remote(str(job.folder.path), os.getcwd(), nproc)

    def exit_code(reference: Any) -> int | None:
        ready, _ = ray.wait([reference], timeout=0)
        return ray.get(reference) if ready else None

    return Scheduler(submit, exit_code, lambda reference: ray.cancel(reference))


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
    """Every run is a job, through submitit; one that is preempted or out of time is queued again."""

    cluster: str = "slurm"  # submitit's name of it; "local" runs the same jobs as processes here, for tests

    def __post_init__(self) -> None:
        if self.gpus is not None or self.slots is not None or self.address is not None:
            raise OelmError("--gpus, --slots and --address are not for --engine slurm; use --slurm KEY=VALUE")

    def executor(self) -> Any:
        submitit = _require("submitit", "slurm")
        usual = {**SLURM_DEFAULTS, "gpus_per_node": self.nproc, "name": "oelm"}
        try:
            executor = submitit.AutoExecutor(folder=SLURM_LOGS, cluster=self.cluster)
            executor.update_parameters(**with_settings(usual, list(self.scheduler_options)))
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


def _require(module: str, engine: str) -> Any:
    """An optional library, or the way to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise OelmError(f"--engine {engine} needs {module}: pip install '.[cluster]' in your clone") from None


ENGINES: dict[str, type[Engine]] = {"local": Local, "ray": Ray, "slurm": Slurm}


def find_engine(name: str, **options: Any) -> Engine:
    """The engine of a name, with these of an engine's options."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    return ENGINES[name](**options)
