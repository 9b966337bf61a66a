"""Run a plan: claim its folders, have somebody work on them (here, or `engines.py`), seen through the folders only."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

from oelm.errors import OelmError, Unavailable, printable
from oelm.experiments.plan import PlannedRun
from oelm.runs import FAILED, FINISHED, UNREADABLE, RunFolder, fate
from oelm.training.environment import usable_cores
from oelm.training.interruption import STOP_SIGNALS, handled, heard, leave_terminal
from oelm.training.leash import leashed

REFUSED = (OelmError.exit_code, Unavailable.exit_code)
"""Exit codes of a run that did not even begin; its status is still that of an earlier attempt."""
STOPPED = tuple(code for number in STOP_SIGNALS for code in (128 + number, -number))
"""Exit codes of a run that left on request; the negative ones, before it had anything to save."""
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.5
GRACE_SECONDS = 300  # a run may be in the middle of a validation
Watch = Callable[[list["Job"]], None]


class Slot(NamedTuple):
    """A place where one run at a time may work: some GPUs, or a share of the CPU, from which no GPU is seen."""

    gpus: tuple[int, ...] = ()  # their numbers among those that we may see ourselves

    @property
    def environment(self) -> dict[str, str]:
        names = (os.environ.get(VISIBLE_GPUS) or "").split(",")
        return {VISIBLE_GPUS: ",".join(names[gpu] if names[0] else str(gpu) for gpu in self.gpus)}


@dataclass
class Job:
    """One planned run and what works on it, if anything does: a process here, or a task on a cluster."""

    run: PlannedRun
    folder: RunFolder
    task: Any = None
    exit_code: int | None = None
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.exit_code is not None

    @property
    def max_steps(self) -> int:
        """0 while nobody knows: epochs become steps when the data are opened."""
        return self.status.get("max_steps") or self.run.config.training.max_steps or 0

    @property
    def at_work(self) -> bool:
        return self.task is not None and not self.done

    @property
    def stopped(self) -> bool:
        """It left on request, with a checkpoint: not finished, but nothing went wrong."""
        return self.exit_code in STOPPED

    @property
    def failed(self) -> bool:
        return self.exit_code not in (None, 0, *STOPPED)

    @property
    def reason(self) -> str:
        """How it failed, in words."""
        return fate(self.exit_code or 0)

    @property
    def last_words(self) -> str:
        return last_words(self.folder) if self.task is not None else self.status.get("error", "it was never started")

    def look(self) -> None:
        """Read its status; one that cannot be read is the trouble of this run alone."""
        try:
            self.status = self.folder.status()
        except OelmError as error:
            self.status = {"state": UNREADABLE, "error": str(error)}

    def ended(self, code: int) -> None:
        """Note how its process or task ended; a run that was refused could not say so itself."""
        self.look()
        self.exit_code = code if code or self.status["state"] == FINISHED else 1
        if code not in REFUSED:
            return
        with contextlib.suppress(OelmError, OSError):
            if self.folder.holder() is None:
                error = last_words(self.folder, lines=1).removeprefix("error: ")
                steps = {"step": self.status.get("step", 0), "max_steps": self.max_steps or None}
                self.folder.set_status(FAILED, **steps, error=error, reason="refused")
        self.look()


class Workers(Protocol):
    """Who works on the jobs of a plan."""

    def advance(self, jobs: list[Job]) -> None:
        """Note what has come to its end, and start what can be started."""

    def stop(self, jobs: list[Job]) -> None:
        """Ask every run at work to checkpoint and leave; return when they have."""


def run_all(planned: Sequence[PlannedRun], workers: Workers, watch: Watch | None = None) -> list[Job]:
    """Run what is not finished yet; a failed run does not stop the others; Ctrl-C checkpoints and stops all."""
    notify = watch or (lambda jobs: None)
    with claimed(planned) as jobs:
        try:
            with signals_raise():
                while not all(job.done for job in jobs):
                    workers.advance(jobs)
                    notify(jobs)
                    time.sleep(POLL_SECONDS)
        except BaseException:
            workers.stop(jobs)
            notify(jobs)
            raise
    notify(jobs)
    return jobs


@contextlib.contextmanager
def claimed(planned: Sequence[PlannedRun]) -> Iterator[list[Job]]:
    """The jobs of a plan, whose folders no other suite can have in its queue meanwhile; all of them, or an error."""
    with contextlib.ExitStack() as claims:
        jobs = []
        for run in planned:
            folder = RunFolder(run.folder)
            folder.path.mkdir(parents=True, exist_ok=True)
            claims.enter_context(folder.claim())
            folder.create(run.config.to_dict())
            holder = folder.holder()
            if holder is not None:
                who = f"process {holder['pid']} on {holder['host']}"
                raise OelmError(f"{folder.path} is being trained by {who}; wait for it, or: oelm stop {folder.path}")
            job = Job(run, folder)
            job.look()
            try:
                job.exit_code = None if folder.result() is None else 0
            except OelmError as error:
                job.exit_code, job.status = 1, {"state": UNREADABLE, "error": str(error)}
            jobs.append(job)
        yield jobs


class LocalWorkers:
    """Processes of this machine, one for every slot that is free."""

    def __init__(self, slots: Sequence[Slot], nproc: int = 1) -> None:
        self.free, self.nproc = list(slots), nproc
        self.taken: dict[Path, Slot] = {}

    def advance(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.at_work:
                code = job.task.poll()
                if code is None:
                    job.look()
                    continue
                job.ended(code)
                self.free.append(self.taken.pop(job.folder.path))
        for job in jobs:
            if self.free and job.task is None and not job.done:
                slot = self.taken[job.folder.path] = self.free.pop(0)
                job.task = start(job.folder, nproc=self.nproc, environment=slot.environment)

    def stop(self, jobs: list[Job]) -> None:
        """Those that do not leave within the grace period are ended."""
        running = [job for job in jobs if job.at_work]
        for job in running:
            job.task.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for job in running:
            try:
                job.exit_code = job.task.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                job.task.kill()
                job.exit_code = job.task.wait()
            job.look()


def last_words(folder: RunFolder, lines: int = 5) -> str:
    """The end of a run's output and log: what to show when it failed."""
    for file in (folder.output_file, folder.log_file):
        with contextlib.suppress(OSError):
            text = file.read_text(errors="replace").strip()
            if text:
                return "\n".join(map(printable, text.splitlines()[-lines:]))
    return "it left no log"


def command(folder: RunFolder, nproc: int = 1) -> list[str]:
    """What a run is started with: it must not outlive us. It starts its own processes if there should be several."""
    many = ["--nproc", str(nproc)] if nproc > 1 else []
    return leashed("-m", "oelm", "resume", str(folder.path), "--quiet", *many)


def start(
    folder: RunFolder, *, nproc: int = 1, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start the process of a run; what it prints goes to a file in the run folder."""
    # A session of its own: Ctrl-C in the terminal reaches only us, and we pass on a request to checkpoint.
    with folder.output_file.open("wb") as output:
        return subprocess.Popen(
            command(folder, nproc),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **(environment or {})},
        )


def local_slots(gpus: Sequence[int] | None, slots: int | None, nproc: int = 1) -> list[Slot]:
    """The places on this machine: `nproc` of the given (or all) GPUs each; without GPUs, shares of the CPU."""
    if gpus is not None and slots is not None:
        raise OelmError("--gpus and --slots exclude each other; every GPU is a slot")
    if slots is not None:
        return [Slot()] * slots
    chosen = _existing(gpus)
    if not chosen:
        return [Slot()] * max(1, usable_cores() // nproc)
    if len(chosen) < nproc:
        raise OelmError(f"--nproc {nproc} needs as many GPUs, but there are {len(chosen)}; name more with --gpus")
    return [Slot(tuple(chosen[i : i + nproc])) for i in range(0, len(chosen) - nproc + 1, nproc)]


def _existing(gpus: Sequence[int] | None) -> list[int]:
    import torch

    count = torch.cuda.device_count()
    missing = [gpu for gpu in gpus or [] if not 0 <= gpu < count]
    if missing:
        seen = os.environ.get(VISIBLE_GPUS)
        where = "this machine has" if seen is None else f"{VISIBLE_GPUS}={seen} leaves"
        there = f"{where} GPUs 0 to {count - 1}" if count else f"{where} no GPU; use --slots"
        raise OelmError(f"GPU {', '.join(map(str, missing))} does not exist; {there}")
    return list(dict.fromkeys(gpus)) if gpus is not None else list(range(count))


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """SIGTERM and a closed terminal unwind like Ctrl-C does: a suite that dies must not leave its runs behind."""

    def leave(number: int, frame: FrameType | None) -> None:
        leave_terminal()
        raise SystemExit(128 + number)

    with handled(leave, [number for number in heard() if number != signal.SIGINT]):
        yield
