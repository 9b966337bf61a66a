"""What the engines beyond one machine share: hand the runs to a scheduler, watch their folders, take them back.

The run folders lie on a file system that all machines see. A scheduler only decides where `work` is called; everything
else is known through the folders, as on one machine.
"""

import contextlib
import importlib
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from oelm.errors import OelmError
from oelm.experiments.runner import GRACE_SECONDS, STOPPED, Job, start
from oelm.runs import RunFolder

Process: TypeAlias = "subprocess.Popen[bytes]"
LOST_LOCK_SECONDS = 180
"""How long the lock of a lost machine may last on a shared file system."""


@dataclass(frozen=True)
class Scheduler:
    """A cluster in three verbs. All runs are handed over at once: the queue is its own."""

    submit: Callable[[Job], Any]
    """Hand a run over; returns the task."""
    exit_code: Callable[[Any], int | None]
    """Of a task, None while it waits or runs; an exception is what went wrong with it."""
    cancel: Callable[[Any], None]

    def advance(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.task is None and not job.done:
                job.task = self.submit(job)
        for job in jobs:
            if job.at_work:
                self._look_at(job)

    def _look_at(self, job: Job) -> None:
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
    try:
        return importlib.import_module(module)
    except ImportError:
        raise OelmError(f"--engine {engine} needs {module}; install it: pip install 'oelm[cluster]'") from None
