"""What a run says of itself: rows of metrics and samples on the way, its status, its timing and result at the end."""

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from oelm.costs.inspection import model_flops
from oelm.data.tokenization import end_of_text_id, load_tokenizer
from oelm.errors import OelmError
from oelm.freezing.report import FreezeReport
from oelm.freezing.schedules import trained_shares
from oelm.models.known import family, shape_name
from oelm.runs import RUNNING, RunFolder
from oelm.training.environment import peak_memory_bytes
from oelm.training.setup import Parts
from oelm.training.timing import StepTimer
from oelm.training.tracking import Trackers

log = logging.getLogger("oelm")
Progress = Callable[[dict[str, Any]], None]
HEARTBEAT_SECONDS = 1.0
LONGEST_SAMPLE = 60  # tokens
SMOOTHING = 0.9
"""Weight of the past in the pace that speed and remaining time are told from."""


class Reporter:
    def __init__(
        self, parts: Parts, folder: RunFolder, timer: StepTimer, progress: Progress | None, started: float
    ) -> None:
        """`started` is when this process began with the run, on `time.perf_counter`'s clock."""
        self.config, self.settings = parts.config, parts.config.training
        self.folder, self.objective, self.data, self.device = folder, parts.objective, parts.data, parts.device
        self.timer = timer
        self.progress = progress if progress and parts.world.leads else lambda facts: None
        self.trackers = Trackers([], folder.path, {})
        self.seconds = 0.0  # spent in steps
        self.validation_seconds: list[float] = []
        self.last_validation: dict[str, Any] = {}
        self._earlier_seconds = 0.0  # spent altogether by earlier processes of this run
        self._started = started
        self._loss: float | None = None
        self._pace: float | None = None  # seconds per step
        self._heartbeat = 0.0

    def open_trackers(self, leads: bool) -> None:
        """Last of all: what fails before would leave them open."""
        self.trackers = Trackers(self.config.runtime.trackers if leads else [], self.folder.path, self.config.to_dict())

    @property
    def wall_seconds(self) -> float:
        return self._earlier_seconds + time.perf_counter() - self._started

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            "seconds": self.seconds,
            "wall_seconds": self.wall_seconds,
            "validation_seconds": self.validation_seconds,
            "last_validation": self.last_validation,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.seconds, self._earlier_seconds = float(state["seconds"]), float(state["wall_seconds"])
        self.validation_seconds = [float(seconds) for seconds in state["validation_seconds"]]
        self.last_validation = dict(state["last_validation"])

    def stepped(self, loss: float) -> None:
        """Count a step that has just been taken."""
        last = self.timer.last
        self.seconds += last
        self._loss = loss
        self._pace = last if self._pace is None else SMOOTHING * self._pace + (1 - SMOOTHING) * last

    def log_step(self, step: int, loss: float, norm: float, rate: float) -> None:
        finite_norm = norm if math.isfinite(norm) else None  # fp16 may overflow; Infinity is no JSON
        row = {"step": step, "loss": loss, "lr": rate, "grad_norm": finite_norm, "tokens": self._tokens(step)}
        self.folder.append_metrics({"kind": "train", **row})
        self.folder.append_clock({"step": step, "seconds": self.seconds, "step_seconds": self.timer.last})
        self.trackers.log(step, {"train/loss": loss, "train/lr": rate, "train/grad_norm": norm})
        if time.monotonic() - self._heartbeat > HEARTBEAT_SECONDS or step == 1:
            self.say(RUNNING, step)
            log.info("step %d: loss %.4f, lr %.2e, %.0f tokens/s", step, loss, rate, self._tokens_per_second() or 0)

    def log_validation(self, step: int, values: dict[str, Any]) -> None:
        self.last_validation = values
        self.folder.append_metrics({"kind": "validation", "step": step, **values})
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        self.trackers.log(step, {f"validation/{name}": value for name, value in numbers.items()})
        headline = self.objective.headline
        log.info("step %d: validation loss %.4f, %s %.4f", step, values["loss"], headline, values[headline])
        self.say(RUNNING, step)

    def say(self, state: str, step: int, **facts: Any) -> None:
        """Status file and progress display get the same facts."""
        everything = {
            "step": step,
            "max_steps": self.settings.max_steps,
            "loss": self._loss,
            "tokens_per_second": self._tokens_per_second(),
            "eta_seconds": (self.settings.max_steps - step) * self._pace if self._pace else None,
            self.objective.headline: self.last_validation.get(self.objective.headline),
            "device": str(self.device),
            **facts,
        }
        self.folder.set_status(state, **everything)
        self.progress({"state": state, **everything})
        self._heartbeat = time.monotonic()

    def finish(
        self, step: int, final: dict[str, Any], best: dict[str, Any], report: FreezeReport, model: nn.Module
    ) -> dict[str, Any]:
        """Write timing and result; verification of the frozen weights must have passed."""
        headline, spent, on_gpu = self.objective.headline, self.validation_seconds, self.device.type == "cuda"
        dataset = self.data.manifest.get("name", self.data.path.name)
        timing = {
            "model_type": self.config.method_name,
            "init_method": report.sites[0].init if report.sites else "keep",  # attention without queries
            "dataset": dataset,
            "total_wall_time": self.wall_seconds,
            **self.timer.statistics(),
            "validation_time_total": sum(spent),
            "validation_time_mean": sum(spent) / len(spent),
            "validation_count": len(spent),
            f"final_{headline}": final[headline],
            "best_val_loss": best["loss"],
        }
        self.folder.record(self.folder.timing_file, timing)
        result = {
            "method": self.config.method_name,
            "seed": self.config.seed,
            "model_family": family(model.config),
            "model_name": shape_name(model.config),
            "dataset": dataset,
            "data_fingerprint": self.data.fingerprint,
            "data_splits": {
                split: {key: facts[key] for key in ("documents", "tokens", "rows") if key in facts}
                for split, facts in self.data.manifest["splits"].items()
            },
            "steps": step,
            "tokens": self._tokens(step),
            "train_tokens": self.data.manifest["splits"]["train"].get("tokens"),
            **self._flops(model, report),
            "final": final,
            "best": best,
            "true_entropy": self.objective.true_entropy,
            "total_parameters": report.total_parameters,
            "frozen_parameters": report.frozen_parameters,
            "trainable_parameters": report.trainable_parameters,
            "frozen_verified": True,
            "worst_orthonormality_error": report.worst_orthonormality_error,
            "wall_seconds": timing["total_wall_time"],
            "training_seconds": self.seconds,
            "validation_seconds": sum(spent),
            "median_step_time": timing.get("median_step_time"),
            "peak_memory_bytes": torch.cuda.max_memory_allocated(self.device) if on_gpu else peak_memory_bytes(),
        }
        self.folder.record(self.folder.result_file, result)
        log.info("finished: %s %.4f over the whole validation set", headline, final[headline])
        return result

    def _flops(self, model: nn.Module, report: FreezeReport) -> dict[str, int]:
        """Matmul FLOPs per trained token, over the whole run; nothing for a model whose products we cannot count."""
        shares, per = trained_shares(report, self.settings.max_steps), self.objective.tokens_per_batch
        try:
            flops = model_flops(model, **self.objective.reads, per=per / self.settings.batch_size, shares=shares)
        except OelmError:
            return {}
        return {"flops_per_token": flops.step, "block_flops_per_token": flops.blocks}

    def _tokens(self, step: int) -> int:
        return step * self.settings.accumulation * self.objective.tokens_per_batch

    def _tokens_per_second(self) -> float | None:
        return self._tokens(1) / self._pace if self._pace else None


def sampler(parts: Parts) -> Callable[[Any], str] | None:
    """What lets a model write after the run's `sample` prompt, or None if none is asked for (here).

    The likeliest token each time: nothing is drawn, so a run with samples computes what one without them computes.
    """
    prompt = parts.config.runtime.sample
    if prompt is None:
        return None
    if (
        parts.config.model.objective not in (None, "causal")
        or parts.objective.headline != "perplexity"
        or parts.config.runtime.strategy == "fsdp"
    ):
        raise OelmError(f"sample {prompt!r} needs a language model that is whole in one process: no task and no fsdp")
    if not parts.world.leads:
        return None
    tokenizer = load_tokenizer(parts.data.tokenizer_path)
    end = end_of_text_id(tokenizer)
    given = [end, *tokenizer.encode(prompt, add_special_tokens=False).ids]
    context = parts.objective.tokens_per_batch // parts.config.training.batch_size

    @torch.no_grad()
    def write(model: Any) -> str:
        ids = list(given)
        for _ in range(LONGEST_SAMPLE):
            inputs = torch.tensor([ids[-context:]], device=parts.device)
            last = model.head(model.hidden(inputs)[:, -1]) if hasattr(model, "hidden") else model(inputs).logits[:, -1]
            ids.append(int(last[0].argmax()))
            if ids[-1] == end:
                break
        return tokenizer.decode([token for token in ids[len(given) :] if token != end])

    return write
