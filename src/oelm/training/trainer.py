"""One training loop for all objectives: set up, fit, finish. The trainer knows neither methods nor architectures.

    result = train(RunConfig.load("config.yaml"), "runs/mine")

A run folder with a checkpoint is continued, bit for bit as if it had never stopped; one with a result is left as it is.
"""

import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oelm.errors import OelmError
from oelm.files import write_atomically
from oelm.freezing.apply import freeze_from_report, verify_frozen
from oelm.freezing.report import FreezeReport
from oelm.freezing.schedules import Rates, Schedule, advance
from oelm.runs import DIVERGED, FAILED, FINISHED, INTERRUPTED, RUNNING, RunFolder, config_differences, failure
from oelm.training import checkpoints, setup
from oelm.training.checkpoints import Checkpoint
from oelm.training.config import RunConfig
from oelm.training.distributed import find_world
from oelm.training.environment import allow_recompiling, environment
from oelm.training.interruption import Interrupted, StopRequest
from oelm.training.reporting import Progress, Reporter, sampler
from oelm.training.step import (
    TrainingStep,
    autocast,
    build_optimizer,
    load_optimizer_tensors,
    optimizer_tensors,
    set_learning_rate,
)
from oelm.training.timing import PUBLISHED_WARMUP, StepTimer

log = logging.getLogger("oelm")


class Diverged(OelmError):
    """The loss is no longer a number; the last good checkpoint is kept."""

    exit_code = 1
    reason = DIVERGED


def train(config: RunConfig, out: str | Path, progress: Progress | None = None) -> dict[str, Any]:
    """Run, or go on with, the training that `config` describes in the folder `out`; return its result."""
    if result := finished(config, RunFolder(out)):
        return result
    world = find_world(config)
    folder = world.folder(out)
    parts = setup.prepare(config, folder, world)  # everything that can be refused is refused here
    folder.path.mkdir(parents=True, exist_ok=True)
    with world.connected(parts.config, folder), folder.lock(), _log_to(folder.log_file):
        folder.create(parts.config.to_dict())
        if result := finished(parts.config, folder):
            return result
        try:
            trainer = Trainer(parts, folder, progress)
        except Exception as error:  # from here on the run itself says how it ends
            with suppress(OSError, OelmError):  # this may not hide what went wrong first
                folder.set_status(FAILED, step=folder.status().get("step", 0), **failure(error))
            raise
        return trainer.run()


def finished(config: RunConfig, folder: RunFolder) -> dict[str, Any] | None:
    """The result of this training, if it is there. Without a fingerprint only the data tell whether it is the same."""
    result = folder.result() if config.data.fingerprint else None
    if result is None or config_differences(folder.config(), config.to_dict()):
        return None
    if folder.status()["state"] != FINISHED:  # killed between writing the result and saying so
        folder.set_status(FINISHED, step=result.get("steps", 0), max_steps=config.training.max_steps)
    return result


class Trainer:
    def __init__(self, parts: setup.Parts, folder: RunFolder, progress: Progress | None = None) -> None:
        started = time.perf_counter()
        self.config, self.settings = parts.config, parts.config.training
        self.folder, self.objective, self.device, self.data = folder, parts.objective, parts.device, parts.data
        self.world = parts.world
        self.step = 0
        self.best = {"loss": math.inf, "step": 0}
        self.timer = StepTimer(self.device, min(PUBLISHED_WARMUP, self.settings.max_steps // 10))
        self._saved_step = -1
        self._wrapped: nn.Module | None = None

        torch.manual_seed(self.config.seed)
        checkpoint = checkpoints.newest_valid(folder.checkpoints, log.warning)
        self.world.require_same({"checkpoint": checkpoint.step if checkpoint else None})
        weights = checkpoint.path if checkpoint else parts.start_from
        with checkpoint.being_read() if checkpoint else nullcontext():
            self.model: nn.Module = parts.build_model(weights).to(self.world.home(self.device))
        if checkpoint is None:
            report = parts.freeze(self.model, pretrained=parts.start_from is not None)
            self.freeze_report = FreezeReport.from_dict(self.world.from_leader(self.model, report.to_dict()))
            folder.truncate_records(-1)
        else:
            with checkpoint.being_read():
                if differences := config_differences(checkpoint.state["config"], self.config.to_dict()):
                    raise OelmError(
                        f"{checkpoint.path} was written with another config ({'; '.join(differences[:4])}); "
                        "restore config.yaml, or start a new run"
                    )
                self.freeze_report = FreezeReport.from_dict(checkpoint.freeze)
                freeze_from_report(self.model, self.freeze_report)
        folder.record(folder.freeze_file, self.freeze_report.to_dict())
        folder.record(folder.environment_file, {**environment(str(self.device)), **self.world.facts})
        self.schedule = Schedule.of(self.freeze_report, self.settings.max_steps)
        self.rates = Rates.of(self.model, self.freeze_report, self.schedule)
        self._wrap()
        self.optimizer = build_optimizer(self.model, self.settings, self.rates)
        self.take_step = TrainingStep(
            self.objective, self.settings, self.device, self.timer, self.world, self._require_number
        )
        self.write_sample = sampler(parts)
        self.reporter = Reporter(parts, folder, self.timer, progress, started)
        if checkpoint is not None:
            with checkpoint.being_read():
                self._load_progress(checkpoint)
        self.reporter.open_trackers(self.world.leads)

    def run(self) -> dict[str, Any]:
        started_at = self.step
        log.info("%s: %s from step %d", self.folder.name, self.config.method_name, started_at)
        try:
            with StopRequest() as stop, self.world.peers():
                self._fit(stop)
                final = self.best if self.settings.score == "best" else self._validate(whole=True)
                if final is not self.best:
                    self._keep_predictions()
                verify_frozen(self.model, self.freeze_report)  # raises if anything frozen has moved
                result = self.reporter.finish(self.step, final, self.best, self.freeze_report, self.model)
        except Interrupted as interruption:
            log.info("%s", interruption)
            raise
        except BaseException as error:
            log.error("failed at step %d (started at %d): %s", self.step, started_at, error)
            with suppress(OSError):  # a full disk may not hide what went wrong first
                self.reporter.say(FAILED, self.step, **failure(error))
            raise
        finally:
            self.reporter.trackers.close()
        self.reporter.say(FINISHED, self.step, **{k: result["final"][k] for k in ("loss", self.objective.headline)})
        return result

    # The loop

    def _fit(self, stop: StopRequest) -> None:
        settings = self.settings
        eval_every = settings.eval_every or settings.max_steps
        checkpoint_every = settings.checkpoint_every or eval_every
        self.reporter.say(RUNNING, self.step)
        while self.step < settings.max_steps:
            self.step += 1
            self._follow_schedule()
            rate = set_learning_rate(self.optimizer, self.step, settings, self.rates)
            loss, norm = self.take_step(self.compiled, self.optimizer, self.step)
            self.reporter.stepped(loss)
            last = self.step == settings.max_steps
            if self.step % settings.log_every == 0 or self.step == 1 or last:
                self.reporter.log_step(self.step, loss, norm, rate)
            improved = (self.step % eval_every == 0 or last) and self._validate_on_the_way()
            if improved or self.step % checkpoint_every == 0 or last:
                self._save(best=improved)
            if (signal_number := self.world.agreed(stop.signal_number)) is not None:
                self._save()
                self.reporter.say(INTERRUPTED, self.step)  # here, where an echo of the request does no harm yet
                raise Interrupted(signal_number, self.step)

    def _wrap(self) -> None:
        """The model to train with, among several processes or compiled; anew when what trains has changed."""
        resting = [p for n, p in self.model.named_parameters() if n in self.rates.pausing and not p.requires_grad]
        for parameter in resting:  # who wraps the model takes what does not train now for frozen
            parameter.requires_grad_(True)
        wrapped = self.world.wrap(self.model, pausing=bool(self.rates.pausing))
        for parameter in resting:
            parameter.requires_grad_(False)
        if wrapped is not self._wrapped:
            self._wrapped = wrapped
            if self.config.runtime.compile:
                allow_recompiling(self.schedule.states)
            self.compiled: nn.Module = torch.compile(wrapped) if self.config.runtime.compile else wrapped  # type: ignore[assignment]

    def _follow_schedule(self) -> None:
        """Let train what the method lets train at this step; when a promise changes, so does the optimizer."""
        if not self.schedule.moves:
            return
        report = advance(self.model, self.freeze_report, self.schedule, self.step)
        if report is self.freeze_report:
            return
        self.freeze_report = report
        self.folder.record(self.folder.freeze_file, report.to_dict())
        self._wrap()
        if self.config.runtime.compile:
            self.timer.skip(1)  # it compiles
        moments = self.optimizer.state
        self.optimizer = build_optimizer(self.model, self.settings, self.rates)
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.optimizer.state.update({p: moments[p] for p in trained if p in moments})
        log.info("step %d: %d parameters frozen from here on", self.step, report.frozen_parameters)

    def _require_number(self, what: str, value: float) -> None:
        """Stop before anything that is no number reaches the weights or a checkpoint."""
        if math.isfinite(value):
            return
        kept = checkpoints.newest_valid(self.folder.checkpoints)
        where = f"the checkpoint of step {kept.step} is kept" if kept else "there was no checkpoint yet"
        raise Diverged(f"{what} became {value} at step {self.step}; {where}. Lower max_lr or warm up longer")

    @torch.no_grad()
    def _validate(self, whole: bool) -> dict[str, Any]:
        start = time.perf_counter()
        self.model.eval()
        precision = "fp32" if self.settings.eval_precision == "fp32" else self.settings.precision
        with autocast(self.device, precision):
            # Not the compiled model: validation has batches of other shapes and would be compiled all over again.
            values = self.objective.validate(self.model, whole=whole)
        self.world.settle(self.model)
        self.reporter.validation_seconds.append(time.perf_counter() - start)
        self._require_number("the validation loss", values["loss"])
        return values

    def _validate_on_the_way(self) -> bool:
        """Validate, record, and say whether this is the best so far."""
        scored = self.settings.score == "best"
        values = self._validate(whole=scored)
        self.reporter.log_validation(self.step, values)
        if self.write_sample is not None:
            row = {"step": self.step, "prompt": self.config.runtime.sample, "text": self.write_sample(self.model)}
            self.folder.append_sample(row)
        if scored and self.objective.headline == "accuracy":
            improved = values["accuracy"] > self.best.get("accuracy", -1)
        else:
            improved = values["loss"] < self.best["loss"]
        if improved and scored:
            self._keep_predictions()
        if improved:
            self.best = {**(values if scored else {"loss": values["loss"]}), "step": self.step}
        return improved

    # Checkpoints

    def _save(self, best: bool = False) -> None:
        """Nothing is saved that fails verification: a checkpoint is a promise."""
        if self._saved_step == self.step and not best:
            return
        verify_frozen(self.model, self.freeze_report)
        weights = self.world.weights(self.model)
        moments = self.world.whole(optimizer_tensors(self.optimizer))
        self._saved_step = self.step
        if not self.world.leads:
            return
        seals = self.folder.sync_records()
        generators = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(self.device)
        elif self.device.type == "mps":
            generators["mps"] = torch.mps.get_rng_state()
        save_pretrained: Any = self.model.save_pretrained
        checkpoints.save(
            self.folder.checkpoints,
            save_model=partial(save_pretrained, state_dict=weights),
            tensors={"optimizer": moments, "random": generators, "timing": {"steps": self.timer.tensor()}},
            freeze=self.freeze_report.to_dict(),
            state={
                "step": self.step,
                "best": self.best if self.best["step"] else None,
                "records": seals,
                **self.reporter.state(),
                "scaler": self.take_step.scaler.state_dict(),
                "data_fingerprint": self.data.fingerprint,
                "tokenizer_hash": self.data.tokenizer_hash,
                "config": self.config.to_dict(),
            },
            tokenizer=self.data.tokenizer_path,
            best=best,
        )

    def _load_progress(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        self.step = self._saved_step = checkpoint.step
        self.reporter.load(state)
        self.best = state["best"] or self.best
        # The link may not have been moved before the process was killed.
        if self.best["step"] == checkpoint.step and self.world.leads:
            checkpoints.mark_best(checkpoint.path)
        self.take_step.scaler.load_state_dict(state["scaler"])
        load_optimizer_tensors(self.optimizer, checkpoint.tensors("optimizer"))
        self.timer.load(checkpoint.tensors("timing")["steps"])
        self.timer.skip(self.timer.warmup_steps)
        generators = checkpoint.tensors("random")
        torch.set_rng_state(generators["cpu"])
        if "cuda" in generators and self.device.type == "cuda":
            torch.cuda.set_rng_state(generators["cuda"], self.device)
        if "mps" in generators and self.device.type == "mps":
            torch.mps.set_rng_state(generators["mps"])
        self.folder.truncate_records(self.step, state.get("records"))

    def _keep_predictions(self) -> None:
        """What the validation that counts made of every row, if rows have a right answer."""
        if self.world.leads and hasattr(self.objective, "predictions"):
            rows = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.objective.predictions())
            write_atomically(self.folder.predictions_file, rows)


@contextmanager
def _log_to(file: Path) -> Iterator[None]:
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.handleError = lambda record: None  # type: ignore[method-assign] # a full disk is said once, by the run
    log.addHandler(handler)
    previous = log.level
    log.setLevel(logging.INFO)  # it goes on to the handlers of a program that we are part of
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(previous)
        handler.close()
