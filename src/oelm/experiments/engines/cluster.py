"""What the engines beyond one machine share: hand the runs to a scheduler, watch their folders, take them back.

The run folders lie on a file system that all machines see. A scheduler only decides where `work` is called; everything
else is known through the folders, as on one machine.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from oelm.errors import OelmError
from oelm.experiments.plan import PlannedRun
from oelm.experiments.runner import GRACE_SECONDS, POLL_SECONDS, STOPPED, Job, Watch, claimed, signals_raise, start
from oelm.runs import RunFolder

Process: TypeAlias = "subprocess.Popen[bytes]"
LOST_LOCK_SECONDS = 180
"""How long the lock of a lost machine may last on a shared file system."""


@dataclass(frozen=True)
class Scheduler:
    """A cluster in three verbs."""

    submit: Callable[[Job], Any]
    """Hand a run over; returns the task."""
    exit_code: Callable[[Any], int | None]
    """Of a task, None while it waits or runs; an exception is what went wrong with it."""
    cancel: Callable[[Any], None]


def run_on(scheduler: Scheduler, planned: Sequence[PlannedRun], watch: Watch | None = None) -> list[Job]:
    """As `run_all`, with all runs handed over at once: the queue is the scheduler's."""
    notify = watch or (lambda jobs: None)
    with claimed(planned) as jobs:
        try:
            with signals_raise():
                for job in jobs:
                    if not job.done:
                        job.task = scheduler.submit(job)
                while not all(job.done for job in jobs):
                    for job in jobs:
                        _look_at(job, scheduler)
                    notify(jobs)
                    time.sleep(POLL_SECONDS)
        except BaseException:
            _cancel(jobs, scheduler)
            notify(jobs)
            raise
    notify(jobs)
    return jobs


def work(folder: str | Path, directory: str, nproc: int = 1, started: Callable[[Process], None] | None = None) -> int:
    """Called on some machine of the cluster: train in the run folder, in a process of its own; its exit code.

    `started` is told of that process.
    """
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


def require(module: str, engine: str) -> Any:
    """An optional library, or the way to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise OelmError(f"--engine {engine} needs {module}; install it: pip install 'oelm[cluster]'") from None


def _look_at(job: Job, scheduler: Scheduler) -> None:
    if not job.at_work:
        return
    try:
        code = scheduler.exit_code(job.task)
    except Exception as error:  # schedulers raise many unrelated types
        code = 1
        with job.folder.output_file.open("a") as output:
            output.write(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}\n")
    if code is None:
        job.look()
    else:
        job.ended(code)


def _cancel(jobs: list[Job], scheduler: Scheduler) -> None:
    """Ask for the end of all tasks and wait until their runs have saved what they have."""
    running = [job for job in jobs if job.at_work]
    for job in running:
        with contextlib.suppress(Exception):
            scheduler.cancel(job.task)
    deadline = time.monotonic() + GRACE_SECONDS
    while any(job.folder.locked for job in running) and time.monotonic() < deadline:
        time.sleep(0.2)
    for job in running:
        job.look()
        job.exit_code = STOPPED[0]
