"""Ready-to-time training steps of several methods on one model and one data set."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from oelm.freezing import freeze
from oelm.inspection import model_flops
from oelm.models.gpt import GPT, GPTConfig
from oelm.training.config import TrainingSection
from oelm.training.interleaved import Step, interleave, ratio
from oelm.training.optimizer import build_optimizer


def training_step(model: nn.Module, settings: TrainingSection, inputs: torch.Tensor, targets: torch.Tensor) -> Step:
    """Forward, backward, clip and AdamW on one fixed batch, as the trainer does it."""
    optimizer = build_optimizer(model, settings)
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    model.train()

    def step() -> float:
        loss = model(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, settings.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()  # on a GPU this waits for the step to end

    return step


def compare_step_times(
    methods: Iterable[str],
    config: GPTConfig,
    settings: TrainingSection,
    *,
    rounds: int,
    reference: str = "baseline",
    device: str = "cpu",
) -> dict[str, Any]:
    """Step-time ratios of methods to the reference, beside the ratio that their FLOPs predict."""
    length = settings.sequence_length or config.max_seq_len
    tokens = torch.randint(config.vocab_size, (settings.batch_size, length + 1), device=device)
    steps: dict[str, Step] = {}
    flops: dict[str, int] = {}
    for name in dict.fromkeys([reference, *methods]):
        torch.manual_seed(0)
        model = GPT(config).to(device)
        freeze(model, name)
        steps[name] = training_step(model, settings, tokens[:, :-1], tokens[:, 1:])
        flops[name] = model_flops(model, sequence_length=length, causal=True).step
    seconds = interleave(steps, rounds=rounds)
    arms = {
        name: {**ratio(values, seconds[reference]), "predicted": flops[name] / flops[reference]}
        for name, values in seconds.items()
        if name != reference
    }
    return {
        "protocol": {
            "order": "A-B-…-B-A in one process",
            "rounds": rounds,
            "batch": f"{settings.batch_size} × {length} tokens",
            "device": device,
            "threads": torch.get_num_threads(),
            "precision": "fp32",
        },
        "reference": reference,
        "reference_median_seconds": float(sorted(seconds[reference])[rounds // 2]),
        "arms": arms,
    }
