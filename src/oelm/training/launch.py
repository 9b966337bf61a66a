"""Start the processes of a run on this machine, and say what became of them.

They meet in a file of a folder that only this user can read, and talk over the loopback interface: nobody outside this
machine can reach them. Several machines are torchrun's own business: `torchrun --nnodes 2 … -m oelm train …` on each.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import yaml

from oelm.errors import OelmError, Unavailable
from oelm.runs import RunFolder, diverged, fate
from oelm.training import setup
from oelm.training.checkpoints import newest_valid
from oelm.training.config import RunConfig
from oelm.training.distributed import MEETING, PeerLost, planned_world
from oelm.training.environment import usable_cores
from oelm.training.interruption import STOP_SIGNALS, StopRequest
from oelm.training.leash import leashed

GRACE_SECONDS = 300  # between a request to stop and the end: a run may be in the middle of a validation
POLL_SECONDS = 0.05
_LAST_WORDS = (OelmError.exit_code, Unavailable.exit_code, *(128 + number for number in STOP_SIGNALS))
"""Exit codes after which nothing is started again: the process has said why, and would say it again."""


class Failure(NamedTuple):  # a process that did not finish
    rank: int
    pid: int
    exit_code: int


def launch(
    config: RunConfig,
    out: str | Path,
    *,
    options: Sequence[str] = (),
    max_restarts: int = 0,
    say: Callable[[str], None] = print,
) -> int:
    """Train in `config.runtime.nproc` processes, starting them again when one is lost; return the exit code."""
    folder = RunFolder(out)
    with StopRequest() as stop, tempfile.TemporaryDirectory(prefix="oelm-") as temporary:
        parts = setup.prepare(config, folder, planned_world(config))  # refuse here what each of them would refuse
        file = Path(temporary) / "config.yaml"
        file.write_text(yaml.safe_dump(parts.config.to_dict(), sort_keys=False, allow_unicode=True), encoding="utf-8")
        # On a leash, they do not outlive us.
        command = leashed("-m", "oelm", "train", "--config", str(file), "--out", str(folder.path), *options)
        for restarts in range(max_restarts + 1):
            failures = _run_once(command, config.runtime.nproc, Path(temporary) / f"meeting-{restarts}", stop)
            if not failures:
                return 0
            # The process that failed first; those that only lost it, or were ended by us, come after.
            cause = min(failures, key=lambda failure: failure.exit_code in (-signal.SIGTERM, PeerLost.exit_code))
            kept = newest_valid(folder.checkpoints)
            place = f"from the checkpoint of step {kept.step}" if kept else "from the start (no checkpoint yet)"
            if stop.signal_number is not None:
                return 128 + stop.signal_number
            if cause.exit_code in _LAST_WORDS:
                return cause.exit_code
            what = f"process {cause.rank} of {config.runtime.nproc} (pid {cause.pid}) {fate(cause.exit_code)}"
            if restarts == max_restarts or diverged(folder.status()):
                break
            say(f"{what}; starting again {place} (restart {restarts + 1} of {max_restarts})")
    say(f"error: {what}; the run has ended. 'oelm resume {folder.path}' goes on {place}")
    return 1


def _run_once(command: list[str], nproc: int, meeting: Path, stop: StopRequest) -> list[Failure]:
    """What failed, in its order; nothing, if the processes finished. The first that fails ends the others."""
    shared = {**os.environ, **_environment(nproc, meeting)}
    running: dict[int, subprocess.Popen[bytes]] = {}
    failures: list[Failure] = []
    deadline = None  # set when they were asked to leave, which is done once: a second time means "at once"
    try:
        for rank in range(nproc):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            # A session of its own: Ctrl-C in the terminal reaches only us, and we pass it on.
            running[rank] = subprocess.Popen(command, env={**shared, **own}, start_new_session=True)
        while running:
            for rank, process in list(running.items()):
                if (code := process.poll()) is not None:
                    del running[rank]
                    failures += [Failure(rank, process.pid, code)] if code else []
            if deadline is None and (failures or stop.signal_number is not None):
                deadline = time.monotonic() + GRACE_SECONDS
                for process in running.values():
                    process.send_signal(stop.signal_number or signal.SIGTERM)
            if deadline is not None and time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
    finally:
        for rank, process in running.items():
            process.kill()
            failures.append(Failure(rank, process.pid, process.wait()))
    return failures


def _environment(nproc: int, meeting: Path) -> dict[str, str]:
    """What the processes have in common; also the cores, unless somebody has said how many threads there should be."""
    ours = {MEETING: str(meeting), "WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc)}
    defaults = {"OMP_NUM_THREADS": str(max(1, usable_cores() // nproc))}
    with suppress(OSError, AttributeError, StopIteration):  # the interface that nobody outside this machine can reach
        loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
        defaults |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    return ours | {name: value for name, value in defaults.items() if name not in os.environ}
