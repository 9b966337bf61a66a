"""The run folder: the only interface between training, monitoring and analysis. No torch here.

config.yaml          complete and re-runnable
environment.json     versions, hardware, git commit
status.json          state, step, heartbeat, ETA
metrics.jsonl        one row per logged step and per validation; a resumed run's file is byte-identical
clock.jsonl          wall-clock of the same steps, kept apart because time never repeats
timing_stats.json    step times under the published field names, with their breakdown
freeze.json          what was frozen, with hashes
checkpoints/         step-N folders, and the links `best` and `latest`
predictions.jsonl    of a classifier, its answer to every row it was judged by
evaluation/          what `oelm evaluate`, `oelm probe` and `oelm generate --quality` measured
training.log         what was said
output.txt           what a run of a suite printed: why it was refused, or broke down
result.json          the outcome; there is one if and only if the run finished
"""

import errno
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from oelm.errors import OelmError, Unavailable
from oelm.files import exclusive, is_locked, name_file, sync, write_atomically, write_json
from oelm.records import config_differences, read_config, read_json, read_rows, rows_until, seal_rows, seal_text, sealed

QUEUED, RUNNING, INTERRUPTED, FAILED, FINISHED = "queued", "running", "interrupted", "failed", "finished"
DIVERGED = "diverged"  # why a run failed: the loss was no number any more; other reasons say nothing of its settings
DEAD = "dead"  # not a stored state: the status says running, but no process holds the folder
UNREADABLE = "unreadable"  # not a stored state either: the folder's files cannot be understood
_EXECUTION = ("data", "runtime")  # sections that may change where nothing else does: where data lie, how it runs
STATES = (QUEUED, RUNNING, INTERRUPTED, FAILED, FINISHED)
SILENT_SECONDS = 900  # without a heartbeat; then a run elsewhere, whose lock we may not see, counts as dead
CLOCK_SKEW_SECONDS = 60  # how far the clock of another machine may be ahead of ours
Seals = dict[str, dict[str, Any]]  # by the name of a file of rows, what `seal_rows` says of it


def failure(error: BaseException) -> dict[str, str]:
    """What the status of a failed run says of it: in words, and why, in a word."""
    reason = error.reason if isinstance(error, OelmError) else "error"
    return {"error": f"{type(error).__name__}: {error}", "reason": reason}


def diverged(status: dict[str, Any]) -> bool:
    """Whether a run failed of itself; records of version 0.1 say so in words only."""
    reason = status.get("reason") or str(status.get("error", "")).partition(":")[0].lower()
    return status.get("state") == FAILED and reason == DIVERGED


def folder_name(name: str) -> str:
    """A run's name as every file system takes it: a colon would keep Windows from checking out our records.

    >>> folder_name("oelm_freeze+thaw=top-down:0.25:0.75-0")
    'oelm_freeze+thaw=top-down-0.25-0.75-0'
    """
    return name.replace(":", "-")


class RunFolder:
    """Reading and writing the files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.environment_file = self.path / "environment.json"
        self.status_file = self.path / "status.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.clock_file = self.path / "clock.jsonl"
        self.samples_file = self.path / "samples.jsonl"
        self.timing_file = self.path / "timing_stats.json"
        self.freeze_file = self.path / "freeze.json"
        self.predictions_file = self.path / "predictions.jsonl"
        self.log_file = self.path / "training.log"
        self.output_file = self.path / "output.txt"
        self.result_file = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"
        self._row_files = (self.metrics_file, self.clock_file, self.samples_file)
        self.lock_file = self.path / ".lock"
        self.claim_file = self.path / ".claim"

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """An existing run; refuses a folder that is none."""
        folder = cls(path)
        if not folder.config_file.is_file():
            near = Path("runs") / path
            way = f"did you mean {near}?" if near.is_dir() else "give a folder made by 'oelm train'"
            raise OelmError(f"{path} is not a run folder (no config.yaml); {way}")
        return folder

    @property
    def name(self) -> str:
        return self.path.name

    def create(self, config: dict[str, Any]) -> None:
        """Make the folder for this config, or accept the one that is there if its config is the same.

        Where the data lie and how it is executed may change until a run is finished, and all of it until it starts,
        but nothing while another process has it.
        """
        there = self.config() if self.config_file.is_file() else None
        ours = all(owner in (None, _this_process()) for owner in (self.holder(), self.claimant()))
        if there is not None and (self.started or not ours):
            if differences := config_differences(there, config):
                raise OelmError(
                    f"{self.path} holds a run of another config ({'; '.join(differences[:4])}); "
                    "choose another --out, or 'oelm resume' to go on with the old one"
                )
            if ours and not self.result_file.exists():
                self._write_config({**there, **{name: config[name] for name in _EXECUTION if name in config}})
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._write_config(config)
        self.set_status(QUEUED, step=0)

    @property
    def started(self) -> bool:
        """Whether anything was computed here. Of a folder without a status, which we did not make, nobody knows."""
        traces = (self.freeze_file, self.metrics_file, self.checkpoints, self.result_file)
        return any(path.exists() for path in traces) or not self.status_file.exists()

    def lock(self) -> AbstractContextManager[None]:
        """Only one process may train in a folder, on whatever machine; while it does, the lock says which."""
        holder = self.holder()
        if holder is not None and holder["host"] != socket.gethostname():  # whose lock may not be visible here
            raise Unavailable(
                f"{self.path} is being trained by process {holder['pid']} on {holder['host']}; stop it there, or wait "
                f"until it has given no sign of life for {SILENT_SECONDS // 60} minutes"
            )
        busy = f"another process is training in {self.path}; wait for it or stop it: oelm stop {self.path}"
        return _owned(self.lock_file, busy)

    def disown(self) -> None:
        """Forget who had the folder: a scheduler says that its machine is lost."""
        if not self.locked:
            self.lock_file.unlink(missing_ok=True)

    def claim(self) -> AbstractContextManager[None]:
        """Only one suite may have a run in its queue, from before it starts until it ends."""
        return _owned(self.claim_file, f"another 'oelm run' has {self.path} in its queue; wait for it or stop it")

    @property
    def locked(self) -> bool:
        """Whether a living process trains here, as far as this machine's file system can tell."""
        return bool(is_locked(self.lock_file))

    def holder(self) -> dict[str, Any] | None:
        """pid and host of the living process that trains here, if one does."""
        owner, locked = _owner(self.lock_file), is_locked(self.lock_file)
        if owner is None or locked:
            return owner
        if locked is False and owner["host"] == socket.gethostname():
            return None
        status: dict[str, Any] = {}
        with suppress(OelmError):
            status = self._stored_status()
        silence = time.time() - (status.get("heartbeat") or 0)
        fresh = -CLOCK_SKEW_SECONDS < silence < SILENT_SECONDS
        return owner if status.get("state") == RUNNING and fresh else None

    def claimant(self) -> dict[str, Any] | None:
        """pid and host of the living suite that has this run in its queue, if one has."""
        return _owner(self.claim_file) if is_locked(self.claim_file) else None

    # What analysis and monitoring read

    def config(self) -> dict[str, Any]:
        return read_config(self.config_file)

    def status(self) -> dict[str, Any]:
        """status.json and who trains here, with the state corrected to `dead` if it claims to run and nobody does."""
        status, holder = self._stored_status(), self.holder()
        if status["state"] == RUNNING and holder is None:
            status["state"] = DEAD
        return {**status, **(holder or {})}

    def _stored_status(self) -> dict[str, Any]:
        status = read_json(self.status_file, "state") or {"state": QUEUED, "step": 0}
        if status["state"] not in STATES:
            raise OelmError(f"{self.status_file} cannot be read: {status['state'][:80]!r} is no state of a run")
        return status

    def result(self) -> dict[str, Any] | None:
        return read_json(self.result_file, "final")

    def freeze_report(self) -> dict[str, Any] | None:
        return read_json(self.freeze_file)

    def timing(self) -> dict[str, Any] | None:
        return read_json(self.timing_file)

    def environment(self) -> dict[str, Any] | None:
        return read_json(self.environment_file)

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl: kind "train" or "validation", or all."""
        having = b"" if kind is None else json.dumps(kind).encode()  # few rows of many are validations
        rows = read_rows(self.metrics_file, "kind", "step", having=having)
        return [row for row in rows if kind is None or row["kind"] == kind]

    def losses(self) -> list[float]:
        """Of the validations; until there are two, of the latest steps. Reads what it needs only."""
        for options in ({"having": b'"validation"'}, {"last_bytes": 16_384}):
            rows = read_rows(self.metrics_file, "kind", "step", **options)
            values = [row["loss"] for row in rows if row.get("loss") is not None]
            if len(values) > 1:
                break
        return values

    def clock(self) -> list[dict[str, Any]]:
        return read_rows(self.clock_file, "step")

    # What training writes

    def set_status(self, state: str, **facts: Any) -> None:
        status = {"state": state, "heartbeat": time.time(), **facts}
        try:
            write_json(self.status_file, status)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or state == RUNNING:
                raise
            with self.status_file.open("r+b") as file:  # over it, where it lies: that a full disk still allows
                file.write(json.dumps(status).encode())
                file.truncate()

    def record(self, file: Path, value: dict[str, Any]) -> None:
        """One of this folder's JSON files, as a whole, with a digest of itself."""
        write_json(file, sealed(value))

    def append_metrics(self, row: dict[str, Any]) -> None:
        _append(self.metrics_file, row)

    def append_clock(self, row: dict[str, Any]) -> None:
        _append(self.clock_file, row)

    def append_sample(self, row: dict[str, Any]) -> None:
        _append(self.samples_file, row)

    def sync_records(self) -> Seals:
        """Have the disk hold every row, before a checkpoint claims that they are there; what it may claim."""
        seals = {}
        for file in self._row_files:
            if file.exists():
                sync(file)
            seals[file.name] = seal_rows(file)
        return seals

    def truncate_records(self, step: int, seals: Seals | None = None) -> None:
        """Forget rows after `step`, which a resumed run writes again; what a checkpoint sealed must still be there."""
        for file in self._row_files:
            kept = rows_until(file, step, seals and seals.get(file.name))
            if file.exists() and kept != file.read_bytes():
                write_atomically(file, kept)

    def _write_config(self, config: dict[str, Any]) -> None:
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        write_atomically(self.config_file, seal_text(text))


@contextmanager
def _owned(file: Path, busy: str) -> Iterator[None]:
    with exclusive(file, busy) as lock:
        lock.truncate(0)
        lock.write(json.dumps(_this_process()))
        lock.flush()
        yield


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname()}


def _owner(file: Path) -> dict[str, Any] | None:
    """Who last took a lock; whether it still has it is another question."""
    with suppress(OelmError):
        owner = read_json(file, "pid", "host")
        if owner is not None and isinstance(owner["host"], str) and owner["pid"] > 1:  # 0 and -1 mean "all"
            return {"pid": owner["pid"], "host": owner["host"]}
    return None


def facts_of(folder: RunFolder) -> dict[str, Any]:
    """What there is to say about a run now, from its small files alone; what cannot be read becomes its state."""
    try:
        status, result = folder.status(), folder.result()
        final, latest = (result or {}).get("final", {}), status.get("loss")
        if latest is None and not final:  # from before the first heartbeat
            latest = next(reversed(folder.losses()), None)
        loss = final.get("loss") or latest
    except OelmError as error:
        return {"run": str(folder.path), "state": UNREADABLE, "error": str(error)}
    return {
        "run": str(folder.path),
        "state": FINISHED if result else status["state"],
        "step": (result or {}).get("steps") or status.get("step", 0),
        "max_steps": status.get("max_steps"),
        "loss": loss,
        "perplexity": final.get("perplexity") or status.get("perplexity"),
        "accuracy": final.get("accuracy") or status.get("accuracy"),
        "tokens_per_second": status.get("tokens_per_second"),
        "eta_seconds": status.get("eta_seconds") if status["state"] == RUNNING else None,
        **{key: status.get(key) for key in ("device", "heartbeat", "pid", "host", "error")},
    }


def find_runs(root: str | Path) -> list[RunFolder]:
    """All run folders at or below `root`, by name; what lies in a run (a tracker's files) is none."""
    return [RunFolder(file.parent) for file in find_files(root, "config.yaml", inside=False)]


def find_files(root: str | Path, name: str, *, inside: bool = True) -> list[Path]:
    """Files of this name at or below `root`, by path, but not in checkpoints, nor (unless `inside`) below another."""
    found = []
    for folder, below, files in os.walk(root):
        below[:] = [sub for sub in below if sub != "checkpoints" and (inside or name not in files)]
        if name in files:
            found.append(Path(folder) / name)
    return sorted(found)


def checkpoint_bytes(total_parameters: int, trainable_parameters: int) -> int:
    """Size of a checkpoint: weights of everything and two AdamW moments of what trains, in float32."""
    return 4 * (total_parameters + 2 * trainable_parameters)


def fate(exit_code: int) -> str:
    """How a process that did not finish came to its end, in words.

    >>> fate(-9), fate(1)
    ('was killed by SIGKILL (perhaps for lack of memory)', 'failed with exit code 1')
    """
    if exit_code >= 0:
        return f"failed with exit code {exit_code}"
    hint = " (perhaps for lack of memory)" if exit_code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-exit_code).name}{hint}"


def _append(file: Path, row: dict[str, Any]) -> None:
    try:
        with file.open("a") as handle:
            handle.write(json.dumps(row) + "\n")
    except OSError as error:
        name_file(error, file)
        raise
