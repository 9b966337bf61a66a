"""Runs of a suite as forks of this process, where the command line that starts a run is not the point."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

import torch._dynamo  # noqa: F401 - every optimizer loads it, each fork for itself if we had not

import oelm.training.trainer  # noqa: F401 - as above
from oelm.__main__ import main
from oelm.experiments.runner import command
from oelm.runs import RunFolder
from oelm.training.interruption import STOP_SIGNALS
from oelm.training.leash import PR_SET_PDEATHSIG


class Forked:
    """A run as a fork of this process, which has loaded what a run needs; otherwise that is seconds for each.

    What a suite asks of a subprocess.Popen it can ask of this.
    """

    def __init__(self, folder: RunFolder, nproc: int, environment: Mapping[str, str]) -> None:
        arguments = (folder, nproc, environment)
        self.process = multiprocessing.get_context("fork").Process(target=_resume, args=arguments)
        self.process.start()
        self.terminate, self.kill, self.pid = self.process.terminate, self.process.kill, self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked run", timeout or 0.0)
        return self.process.exitcode


def forked(folder: RunFolder, *, nproc: int = 1, environment: Mapping[str, str] | None = None) -> Forked:
    """What `oelm.experiments.runner.start` is asked for."""
    return Forked(folder, nproc, environment or {})


def _resume(folder: RunFolder, nproc: int, environment: Mapping[str, str]) -> None:
    """In the fork: signals, streams, environment and words as a process of its own would have them."""
    os.setsid()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    with folder.output_file.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.update(environment)
    words = command(folder, nproc)
    sys.argv = words[words.index("oelm") :]
    main()
