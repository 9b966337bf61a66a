"""AdamW over what trains, and the learning rate of every step."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from oelm.freezing.schedules import Rates
from oelm.training.config import TrainingSection

Group = dict[str, Any]


def parameter_groups(
    model: nn.Module, weight_decay: float, rates: Rates | None = None, *, everything: bool = False
) -> list[Group]:
    """Matrices decay; vectors do not (unless `everything` does), nor `mix`, which starts as the identity.

    Frozen parameters are in no group. Groups carry the parameters' names.

    Weights whose learning rate differs from everybody's (`rates`) have groups of their own.
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
