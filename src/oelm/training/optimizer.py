"""AdamW over what trains, and the learning rate of every step."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from oelm.training.config import TrainingSection

Group = dict[str, Any]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[Group]:
    """Matrices decay, vectors do not; frozen parameters are in no group. Groups carry the parameters' names."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [(name, p) for name, p in trained if p.ndim >= 2]
    vectors = [(name, p) for name, p in trained if p.ndim < 2]
    return [
        {"params": [p for _, p in chosen], "names": [name for name, _ in chosen], "weight_decay": decay}
        for chosen, decay in ((matrices, weight_decay), (vectors, 0.0))
        if chosen
    ]


def build_optimizer(model: nn.Module, settings: TrainingSection, fused: bool | None = True) -> torch.optim.AdamW:
    groups = parameter_groups(model, settings.weight_decay)
    return torch.optim.AdamW(groups, lr=settings.max_lr, betas=(settings.beta1, settings.beta2), fused=fused)


def learning_rate(step: int, settings: TrainingSection) -> float:
    """The rate of step `step` (from 1): linear warm-up to max_lr, then a cosine down to min_lr at max_steps."""
    low, high, warmup = settings.min_lr or 0.0, settings.max_lr, settings.warmup_steps or 0
    if step <= warmup:
        return high * step / warmup
    progress = (step - warmup) / max(1, settings.max_steps - warmup)
    return low + (high - low) * 0.5 * (1 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


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
                # AdamW keeps its step counter where the fused kernel wants it: beside the parameter.
                optimizer.state[parameter] = {k: v.to(parameter.device) for k, v in state.items()}
