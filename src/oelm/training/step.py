"""One optimizer step: batches, forward, backward, clip, AdamW. The trainer takes it, and `oelm bench` times it."""

import math
from collections.abc import Callable

import torch
from torch import nn

from oelm.training.config import TrainingSection
from oelm.training.objectives import Objective
from oelm.training.timing import StepTimer
from oelm.training.world import ALONE, World, gathered


class TrainingStep:
    """Takes steps of one run; every part of a step is in its phase of the timer."""

    def __init__(
        self,
        objective: Objective,
        settings: TrainingSection,
        device: torch.device,
        timer: StepTimer,
        world: World = ALONE,
        require_number: Callable[[str, float], None] = lambda what, value: None,
    ) -> None:
        """`require_number` is asked before anything that may be no number reaches the weights, and may raise."""
        self.objective, self.settings, self.device, self.timer, self.world = objective, settings, device, timer, world
        self.require_number = require_number
        self.scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> tuple[float, float]:
        """Take step number `step`, from 1; the mean loss of its batches and the norm of its gradient."""
        accumulation, timer = self.settings.accumulation, self.timer
        model.train()
        self.world.begin(step)
        total = torch.zeros((), device=self.device)
        with timer.step():
            for micro in range(accumulation):
                self.world.share_gradients(now=micro == accumulation - 1)
                with timer.phase("data"):
                    batch = self.objective.batch((step - 1) * accumulation + micro)
                with timer.phase("forward"), autocast(self.device, self.settings.precision):
                    loss = self.objective.loss(model, batch) / accumulation
                with timer.phase("backward"):
                    self.scaler.scale(loss).backward()
                total += loss.detach()
            with timer.phase("optimizer"):
                norm = self._apply_gradients(optimizer)
            mean_loss = self.world.mean(total).item()
        self.require_number("the loss", mean_loss)
        return mean_loss, norm

    def _apply_gradients(self, optimizer: torch.optim.Optimizer) -> float:
        self.scaler.unscale_(optimizer)
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        norm = gathered(nn.utils.clip_grad_norm_(trained, self.settings.grad_clip or math.inf)).item()
        if not self.scaler.is_enabled():  # the scaler itself skips a step whose gradients overflow
            self.require_number("the gradient norm", norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return norm


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Forward passes in the run's precision."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "fp32")
