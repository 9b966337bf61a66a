"""Optional trackers. The run folder is the record: a tracker may fail, the run may not."""

import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oelm.errors import Unavailable, unknown

log = logging.getLogger("oelm")


def require_installed(names: Sequence[str]) -> None:
    """Refuse trackers that are not there, where a user has just asked for them."""
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise Unavailable(
                f"tracker {name!r} is not installed; pip install '.[track]' in your clone, or leave --track out"
            )


class Tracker:
    """As wandb and trackio are told; the others have calls of their own."""

    run: Any

    def __init__(self, folder: Path, config: dict[str, Any]) -> None: ...

    def log(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()


class _TensorBoard(Tracker):
    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _Wandb(Tracker):
    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import wandb

        if os.environ.get("WANDB_MODE") not in ("offline", "disabled") and not wandb.api.api_key:
            raise RuntimeError("not logged in; run 'wandb login'")  # init would stop and ask
        identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]  # resumed, it is the same run there
        project = os.environ.get("WANDB_PROJECT") or "oelm"
        same = {"project": project, "name": folder.name, "id": identity, "resume": "allow"}
        self.run = wandb.init(dir=str(folder), config=config, **same)


class _Trackio(Tracker):
    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT") or "oelm"
        self.run = trackio.init(project=project, name=folder.name, config=config, resume="allow")


class _MLflow(Tracker):
    """Into the run folder, unless MLFLOW_TRACKING_URI names a server."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import mlflow

        uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").resolve().as_uri()
        self.client = mlflow.MlflowClient(tracking_uri=uri)
        known = folder / "mlflow_run.txt"  # a resumed run is the same run there
        if known.is_file():
            self.run = known.read_text().strip()
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "oelm"
        there = self.client.get_experiment_by_name(name)
        experiment = there.experiment_id if there else self.client.create_experiment(name)
        self.run = self.client.create_run(experiment, run_name=folder.name).info.run_id
        for section, values in config.items():
            self.client.log_param(self.run, section, json.dumps(values)[:500])
        known.write_text(self.run)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.run)


TRACKERS = {"tensorboard": _TensorBoard, "wandb": _Wandb, "mlflow": _MLflow, "trackio": _Trackio}


class Trackers:
    """All wanted trackers as one that never raises: whichever fails is reported once and left out from then on."""

    def __init__(self, names: Sequence[str], folder: Path, config: dict[str, Any]) -> None:
        self._active: dict[str, Tracker] = {}
        for name in names:
            try:
                self._active[name] = TRACKERS[name](folder, config)
            except Exception as error:
                log.warning("tracker %s is off: %s (the run goes on; metrics.jsonl has everything)", name, error)

    def log(self, step: int, values: dict[str, float]) -> None:
        self._each(lambda tracker: tracker.log(step, values))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, action: Any) -> None:
        for name, tracker in list(self._active.items()):
            try:
                action(tracker)
            except Exception as error:
                log.warning("tracker %s failed and is off from now on: %s", name, error)
                del self._active[name]
