"""Ready-to-time training steps: our methods and their peers, on one shape and the same batches."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from oelm.bench.interleaved import Step, interleave, ratio
from oelm.bench.peers import PEERS
from oelm.bench.products import products
from oelm.costs.inspection import model_flops
from oelm.data.tokens import TokenData
from oelm.errors import OelmError, unknown
from oelm.freezing.apply import freeze
from oelm.freezing.methods import METHODS, method
from oelm.models.gpt import GPT, GPTConfig
from oelm.training.config import TrainingSection
from oelm.training.environment import allow_recompiling, keep_freed_memory
from oelm.training.objectives import LanguageModelling
from oelm.training.optimizer import build_optimizer
from oelm.training.setup import autocast, with_checkpointing
from oelm.training.timing import StepTimer

WARMUP = 2
PRODUCTS = "products"
"""The arm that does nothing but multiply: our baseline's matrix products."""
RANDOM_BATCHES = 16
"""Batches of made-up text before it repeats itself."""


@dataclass(frozen=True)
class TimedArm:
    """A model with its optimizer and data, and the clock that splits its steps into phases."""

    step: Step
    timer: StepTimer
    model: nn.Module
    flops_per_token: int


def arm_name(name: str) -> str:
    """The full name of a method (also by its alias, or with modifiers) or a peer."""
    known = [*METHODS, *(alias for row in METHODS.values() for alias in row.aliases), *PEERS, PRODUCTS]
    if name.partition("+")[0] not in known:
        raise unknown("arm", name, known)
    if name in PEERS or name == PRODUCTS:
        return name
    found = method(name)
    if found.moves:
        raise OelmError(
            f"arm {name!r} trains other weights at other steps, so it has no step time of its own; "
            "time what it changes between, e.g. oelm_freeze and baseline"
        )
    return found.name


def build_arm(
    name: str,
    config: GPTConfig,
    settings: TrainingSection,
    *,
    device: torch.device,
    warmup: int = WARMUP,
    compiled: bool = False,
    checkpointing: bool = False,
) -> TimedArm:
    """One method on our GPT, or one peer of the same shape, ready to make training steps."""
    length = settings.sequence_length or config.max_seq_len
    torch.manual_seed(0)
    if name == PRODUCTS:
        return _products_arm(config, settings.batch_size, length, device, warmup)
    model = (PEERS[name].build(config) if name in PEERS else GPT(config)).to(device)
    if name not in PEERS:
        freeze(model, name)
    if checkpointing:
        with_checkpointing(getattr(model, "model", model))
    ours_or_fused = name not in PEERS or PEERS[name].fused_optimizer
    optimizer = build_optimizer(model, settings, fused=ours_or_fused or None)
    flops = _flops_per_token(name, model, config, length)
    text = random_text(config.vocab_size, length, settings, device)
    timer = StepTimer(device, warmup)
    called = cast(nn.Module, torch.compile(model)) if compiled else model
    return TimedArm(training_step(called, optimizer, settings, text, timer), timer, model, flops)


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: TrainingSection,
    text: LanguageModelling,
    timer: StepTimer,
) -> Step:
    """Batches, forward, backward, clip and AdamW, as the trainer does it, each in its phase of the timer."""
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = itertools.count()
    device = trained[0].device
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
    model.train()

    def step() -> float:
        with timer.step():
            for _ in range(settings.accumulation):
                with timer.phase("data"):
                    batch = text.batch(next(numbers))
                with timer.phase("forward"), autocast(device, settings.precision):
                    loss = text.loss(model, batch) / settings.accumulation
                with timer.phase("backward"):
                    scaler.scale(loss).backward()
            with timer.phase("optimizer"):
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(trained, settings.grad_clip or math.inf)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
            value = loss.item()  # on a GPU this waits for the step to end
        return value

    return step


def _products_arm(config: GPTConfig, batch: int, length: int, device: torch.device, warmup: int) -> TimedArm:
    forward, backward = products(config, batch, length, device)
    timer = StepTimer(device, warmup)
    with torch.device("meta"):
        twin = GPT(config)  # its FLOPs are those of the products; it has no weights that anybody would count

    def step() -> None:
        with timer.step():
            with timer.phase("forward"):
                forward()
            with timer.phase("backward"):
                backward()

    return TimedArm(step, timer, nn.Module(), _flops_per_token("baseline", twin, config, length))


def random_text(
    vocab_size: int, length: int, settings: TrainingSection, device: torch.device, seed: int = 0
) -> LanguageModelling:
    """The trainer's own objective over made-up tokens: what they say changes no step's time."""
    count = RANDOM_BATCHES * settings.batch_size * length + 1
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    tokens = cast(np.memmap, np.random.default_rng(seed).integers(vocab_size, size=count, dtype=dtype))
    data = TokenData(Path("random text"), {}, train=tokens, validation=tokens)
    return LanguageModelling(data, settings, length=length, seed=seed, device=device)


def _flops_per_token(name: str, model: nn.Module, config: GPTConfig, length: int) -> int:
    if name not in PEERS:
        return model_flops(model, sequence_length=length, causal=True).step
    # On a twin without memory: counting splits GPT-2's fused projection, and it would no longer be GPT-2.
    with torch.device("meta"):
        twin = PEERS[name].counted(config)
    return model_flops(twin, sequence_length=length).step


def compare_step_times(
    methods: Iterable[str],
    config: GPTConfig,
    settings: TrainingSection,
    *,
    rounds: int,
    reference: str = "baseline",
    device: str = "cpu",
    compiled: bool = False,
    checkpointing: bool = False,
) -> dict[str, Any]:
    """Step-time ratios of methods to the reference, beside the ratio that their FLOPs predict.

    A method that trains other weights at other steps has no step time of its own and is left out.
    """
    length = settings.sequence_length or config.max_seq_len
    if torch.device(device).type == "cpu":
        keep_freed_memory()  # as the trainer does
    names = [name for name in dict.fromkeys([reference, *methods]) if not method(name).moves]
    if compiled:
        allow_recompiling(len(names))  # all of them are versions of one model
    how: dict[str, Any] = {"device": torch.device(device), "compiled": compiled, "checkpointing": checkpointing}
    arms = {name: build_arm(name, config, settings, **how) for name in names}
    seconds = interleave({name: arm.step for name, arm in arms.items()}, rounds=rounds, warmup=WARMUP)
    flops = {name: arm.flops_per_token for name, arm in arms.items()}
    ratios = {
        name: {**ratio(values, seconds[reference]), "predicted": flops[name] / flops[reference]}
        for name, values in seconds.items()
        if name != reference
    }
    return {
        "protocol": {
            "order": "A-B-…-B-A in one process",
            "rounds": rounds,
            "batch": f"{settings.batch_size} × {length} tokens",
            "accumulation": settings.accumulation,
            "device": device,
            "threads": torch.get_num_threads(),
            "precision": settings.precision,
            "compiled": compiled,
            "gradient_checkpointing": checkpointing,
        },
        "reference": reference,
        "reference_median_seconds": float(sorted(seconds[reference])[rounds // 2]),
        "arms": ratios,
    }
