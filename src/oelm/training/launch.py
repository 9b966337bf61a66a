"""Start the processes of a run on this machine through torch's elastic agent, and say what became of them.

Several machines are torchrun's own business: `torchrun --nnodes 2 … -m oelm train …` on each of them.
"""

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import yaml

from oelm.errors import OelmError, Unavailable
from oelm.runs import RunFolder, fate
from oelm.training import setup
from oelm.training.checkpoints import newest_valid
from oelm.training.config import RunConfig
from oelm.training.distributed import PeerLost, planned_world
from oelm.training.environment import usable_cores

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

GRACE_SECONDS = 300
"""Between a request to stop and the end: a run may be in the middle of a validation."""
RETRY_SECONDS = 0.02
_LAST_WORDS = (OelmError.exit_code, Unavailable.exit_code, 128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit codes after which nothing is started again: the process has said why, and would say it again."""


def launch(
    config: RunConfig,
    out: str | Path,
    *,
    options: Sequence[str] = (),
    max_restarts: int = 0,
    port: int = 0,
    say: Callable[[str], None] = print,
) -> int:
    """Train in `config.runtime.nproc` processes, starting them again when one is lost; return the exit code."""
    from torch.distributed.elastic.multiprocessing import SignalException

    try:
        with _stop_requests():
            return _launch(config, RunFolder(out), options, max_restarts, port, say)
    except SignalException as request:
        return 128 + request.sigval


def _launch(
    config: RunConfig,
    folder: RunFolder,
    options: Sequence[str],
    max_restarts: int,
    port: int,
    say: Callable[[str], None],
) -> int:
    parts = setup.prepare(config, folder, planned_world(config))  # refuse here what each of them would refuse
    _require_free(port)
    with tempfile.TemporaryDirectory(prefix="oelm-") as temporary:
        file = Path(temporary) / "config.yaml"
        file.write_text(yaml.safe_dump(parts.config.to_dict(), sort_keys=False, allow_unicode=True))
        command = ["-m", "oelm", "train", "--config", str(file), "--out", str(folder.path), *options]
        for restarts in range(max_restarts + 1):
            failures = _run_once(command, config.runtime.nproc, port, Path(temporary))
            if not failures:
                return 0
            rank, cause = _cause(failures)
            if cause.exitcode in _LAST_WORDS:
                return cause.exitcode
            what = f"process {rank} of {config.runtime.nproc} (pid {cause.pid}) {fate(cause.exitcode)}"
            if restarts == max_restarts or _diverged(folder):
                break
            say(f"{what}; starting again {_place(folder)} (restart {restarts + 1} of {max_restarts})")
    say(f"error: {what}; the run has ended. 'oelm resume {folder.path}' goes on {_place(folder)}")
    return 1


def _run_once(command: list[str], nproc: int, port: int, logs: Path) -> "Mapping[int, ProcessFailure]":
    """What failed, by rank; nothing, if the processes finished."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    newer = {"shutdown_timeout": GRACE_SECONDS, "signals_to_handle": "SIGHUP,SIGQUIT"}  # the others are ours
    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    options: dict[str, Any] = {name: value for name, value in newer.items() if name in known}
    agent = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id="oelm",
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{port}",
        local_addr="localhost",
        max_restarts=0,  # it would also start again what was stopped or refused
        logs_specs=DefaultLogsSpecs(log_dir=str(logs)),
        **options,
    )
    leash = [
        "-m",
        "oelm.training.leash",
        str(os.getpid()),
        sys.executable,
    ]  # a launcher that is killed takes them along
    try:
        with _environment(nproc), _quiet_agent():
            elastic_launch(agent, sys.executable)(*leash, *command)
    except ChildFailedError as error:
        return error.failures
    return {}


@contextlib.contextmanager
def _stop_requests() -> Iterator[None]:
    """Inside, SIGTERM and SIGINT raise SignalException, upon which the agent passes them on to the processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise, unless that would leave a lock of `subprocess` taken, which the agent could then never take again."""
    from torch.distributed.elastic.multiprocessing import SignalException

    while frame is not None:
        lock = getattr(frame.f_locals.get("self"), "_waitpid_lock", None)
        if lock is not None and lock.locked():
            threading.Timer(RETRY_SECONDS, os.kill, (os.getpid(), number)).start()
            return
        frame = frame.f_back
    raise SignalException(f"asked to stop by {signal.Signals(number).name}", sigval=signal.Signals(number))


def _cause(failures: "Mapping[int, ProcessFailure]") -> "tuple[int, ProcessFailure]":
    """The process that failed first; those that only lost it, or were ended by the agent, come after."""
    after = (-signal.SIGTERM, PeerLost.exit_code)
    return min(failures.items(), key=lambda item: (item[1].exitcode in after, item[1].timestamp))


def _place(folder: RunFolder) -> str:
    checkpoint = newest_valid(folder.checkpoints)
    return f"from the checkpoint of step {checkpoint.step}" if checkpoint else "from the start (no checkpoint yet)"


def _diverged(folder: RunFolder) -> bool:
    return str(folder.status().get("error", "")).startswith("Diverged")


def _require_free(port: int) -> None:
    if not port:
        return
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except (OSError, OverflowError) as error:
        raise OelmError(f"port {port} cannot be used ({error}); choose another --port, or leave it out") from None


@contextlib.contextmanager
def _environment(nproc: int) -> Iterator[None]:
    """Processes share the cores, unless somebody has said how many threads there should be."""
    ours = {"OMP_NUM_THREADS": str(max(1, usable_cores() // nproc))}
    added = {name: value for name, value in ours.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextlib.contextmanager
def _quiet_agent() -> Iterator[None]:
    """We say ourselves what happened, in one line."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed")]
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
