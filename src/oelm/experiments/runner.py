"""Run a plan on this machine: one process per run, a few at a time, each seen through its run folder only."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oelm.experiments.plan import PlannedRun
from oelm.runs import FINISHED, RunFolder

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 60


@dataclass
class Job:
    """One planned run and the process that works on it, if any."""

    run: PlannedRun
    folder: RunFolder
    process: "subprocess.Popen[bytes] | None" = None
    exit_code: int | None = None
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.exit_code is not None

    @property
    def failed(self) -> bool:
        return self.exit_code not in (None, 0)


def run_all(planned: list[PlannedRun], *, slots: int, watch: Callable[[list[Job]], None] | None = None) -> list[Job]:
    """Run what is not finished yet; a failed run does not stop the others; Ctrl-C checkpoints and stops all."""
    jobs = [_prepare(run) for run in planned]
    notify = watch or (lambda jobs: None)
    try:
        while not all(job.done for job in jobs):
            _reap(jobs)
            _launch(jobs, slots)
            notify(jobs)
            time.sleep(_POLL_SECONDS)
    except BaseException:
        stop(jobs)
        notify(jobs)
        raise
    notify(jobs)
    return jobs


def stop(jobs: list[Job]) -> None:
    """Ask every running process to checkpoint and leave; end those that do not within the grace period."""
    running = [job for job in jobs if job.process is not None and not job.done]
    for job in running:
        job.process.terminate()  # type: ignore[union-attr]
    deadline = time.monotonic() + _GRACE_SECONDS
    for job in running:
        process = job.process
        assert process is not None
        try:
            job.exit_code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            job.exit_code = process.wait()
        job.status = job.folder.status()


def last_words(folder: RunFolder, lines: int = 5) -> str:
    """The end of a run's output and log: what to show when it failed."""
    for file in (_output_file(folder), folder.log_file):
        with contextlib.suppress(OSError):
            text = file.read_text(errors="replace").strip()
            if text:
                return "\n".join(text.splitlines()[-lines:])
    return "it left no log"


def _prepare(run: PlannedRun) -> Job:
    folder = RunFolder(run.folder)
    folder.create(run.config.to_dict())
    finished = folder.result() is not None
    return Job(run, folder, exit_code=0 if finished else None, status=folder.status())


def _launch(jobs: list[Job], slots: int) -> None:
    for job in jobs:
        active = sum(other.process is not None and not other.done for other in jobs)
        if active >= slots:
            return
        if job.process is None and not job.done:
            job.process = _start(job.folder)


def _start(folder: RunFolder) -> "subprocess.Popen[bytes]":
    # A session of its own: Ctrl-C in the terminal reaches only us, and we pass on a request to checkpoint.
    with _output_file(folder).open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "oelm", "resume", str(folder.path), "--quiet"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        )


def _output_file(folder: RunFolder) -> Path:
    return folder.path / "output.txt"


def _reap(jobs: list[Job]) -> None:
    for job in jobs:
        if job.process is not None and not job.done:
            code = job.process.poll()
            job.status = job.folder.status()
            if code is not None:
                job.exit_code = code if code or job.status["state"] == FINISHED else 1
