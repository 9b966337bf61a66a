"""Training steps ready to be timed: our methods and their peers, of one shape and on the same batches.

A step is the trainer's own (`oelm.training.step`), over made-up tokens through the trainer's own data code.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from oelm.bench.peers import PEERS
from oelm.bench.ratios import Step
from oelm.costs.inspection import costs_of, model_flops
from oelm.data.tokens import TokenData
from oelm.freezing.apply import freeze
from oelm.freezing.methods import method
from oelm.models.gpt import GPT, GPTConfig
from oelm.training.config import TrainingSection
from oelm.training.objectives import LanguageModelling
from oelm.training.setup import with_checkpointing
from oelm.training.step import TrainingStep, build_optimizer
from oelm.training.timing import StepTimer

WARMUP = 2
RANDOM_BATCHES = 16
"""Batches of made-up text before it repeats itself."""


@dataclass(frozen=True)
class TimedArm:
    """A model with its optimizer and data, and the clock that splits its steps into phases."""

    step: Step
    timer: StepTimer
    model: nn.Module
    flops_per_token: int


def build_arm(
    name: str,
    config: GPTConfig,
    settings: TrainingSection,
    *,
    device: torch.device,
    compiled: bool = False,
    checkpointing: bool = False,
) -> TimedArm:
    """One method on our GPT, or one peer of the same shape, ready to make training steps."""
    length = settings.sequence_length or config.max_seq_len
    torch.manual_seed(0)
    timer = StepTimer(device, WARMUP)
    if name in PEERS:
        model: nn.Module = PEERS[name].build(config).to(device)
    else:
        model = GPT(config.with_architecture(method(name).architecture)).to(device)
        freeze(model, name)
    if checkpointing:
        with_checkpointing(getattr(model, "model", model))
    fused = name not in PEERS or PEERS[name].fused_optimizer
    optimizer = build_optimizer(model, settings, fused=fused or None)
    take_step = TrainingStep(random_text(config.vocab_size, length, settings, device), settings, device, timer)
    called, numbers = cast(nn.Module, torch.compile(model)) if compiled else model, itertools.count(1)
    step = lambda: take_step(called, optimizer, next(numbers))[0]  # noqa: E731
    return TimedArm(step, timer, model, flops_per_token(name, config, length, checkpointing))


def random_text(vocab_size: int, length: int, settings: TrainingSection, device: torch.device) -> LanguageModelling:
    """The trainer's own objective over made-up tokens: what they say changes no step's time."""
    count = RANDOM_BATCHES * settings.batch_size * length + 1
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    tokens = cast(np.memmap, np.random.default_rng(0).integers(vocab_size, size=count, dtype=dtype))
    data = TokenData(Path("random text"), {"splits": {"validation": {}}}, train=tokens, validation=tokens)
    return LanguageModelling(data, settings, length=length, seed=0, device=device)


def flops_per_token(name: str, config: GPTConfig, length: int, checkpointing: bool = False) -> int:
    """Matmul FLOPs of a step, counted without memory: of a method, as everywhere; of a peer, on a twin of it."""
    if name not in PEERS:
        return costs_of(config, name, sequence_length=length, gradient_checkpointing=checkpointing).flops.step
    with torch.device("meta"):  # counting splits GPT-2's fused projection: the peer itself stays as it was built
        twin = PEERS[name].counted(config)
    return model_flops(twin, sequence_length=length).step
