"""One optimizer step: batches, forward, backward, clip, AdamW. The trainer takes it, and `oelm bench` times it.

Below it: AdamW over what trains, its learning rate at every step, and its state by name.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from oelm.freezing.schedules import Rates
from oelm.training.config import TrainingSection
from oelm.training.distributed import ALONE, World, gathered
from oelm.training.objectives import Objective
from oelm.training.timing import StepTimer


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


def parameter_groups(
    model: nn.Module, weight_decay: float, rates: Rates | None = None, *, everything: bool = False
) -> list[dict[str, Any]]:
    """Matrices decay; vectors do not (unless `everything` does), nor `mix`, which starts as the identity.

    Frozen parameters are in no group; those whose rate differs from everybody's (`rates`) have groups of their own.
    """
    chosen: dict[tuple[bool, tuple[float, int]], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or (rates and name in rates.pausing):
            key = rates.key(name) if rates else (1.0, 0)
            spared = not everything and (parameter.ndim < 2 or name.endswith(".mix"))
            chosen.setdefault((spared, key), []).append((name, parameter))
    return [
        {
            "params": [p for _, p in members],
            "names": [name for name, _ in members],
            "weight_decay": 0.0 if spared else weight_decay,
            "rate_key": key,
        }
        for (spared, key), members in sorted(chosen.items(), key=lambda item: item[0])
    ]


def build_optimizer(
    model: nn.Module, settings: TrainingSection, rates: Rates | None = None, *, fused: bool | None = True
) -> torch.optim.AdamW:
    groups = parameter_groups(model, settings.weight_decay, rates, everything=settings.decay == "all")
    return torch.optim.AdamW(groups, lr=settings.max_lr, betas=(settings.beta1, settings.beta2), fused=fused)


def learning_rate(step: int, settings: TrainingSection) -> float:
    """The rate of step `step` (from 1): linear warm-up to max_lr, then a cosine or a line to min_lr at max_steps."""
    low, high, warmup = settings.min_lr or 0.0, settings.max_lr, settings.warmup_steps or 0
    if step <= warmup:
        return high * step / warmup
    progress = (step - warmup) / max(1, settings.max_steps - warmup)
    if settings.schedule == "linear":
        return high + (low - high) * progress
    return low + (high - low) * 0.5 * (1 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, step: int, settings: TrainingSection, rates: Rates) -> float:
    """Give every group its rate of this step; return everybody's."""
    rate = learning_rate(step, settings)
    for group in optimizer.param_groups:
        group["lr"] = rate * rates.at(group["rate_key"], step)
    return rate


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's state by parameter name ("blocks.0.ffn.up.weight/exp_avg"), for a file without pickle."""
    return {
        f"{name}/{kind}": value
        for group in optimizer.param_groups
        for name, parameter in zip(group["names"], group["params"], strict=True)
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give every parameter its state back, by name. Parameters without state (never stepped) stay without."""
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            state = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
            if state:
                optimizer.state[parameter] = {kind: _beside(value, parameter, kind) for kind, value in state.items()}


def _beside(value: Tensor, parameter: Any, kind: str) -> Tensor:
    """AdamW keeps its step counter where the fused kernel wants it: beside the parameter. Moments are sharded alike."""
    value = value.to(parameter.device, copy=True)  # not a map of the checkpoint's file, which will be removed
    if kind == "step" or not hasattr(parameter, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
