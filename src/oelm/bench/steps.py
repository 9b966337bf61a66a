"""Training steps ready to be timed: our methods and their peers, of one shape and on the same batches.

A step is the trainer's own (`oelm.training.step`): of a run, on its own data; of a shape, over made-up tokens through
the trainer's own data code. Peers have fresh weights: Hugging Face's, and the GPT that anybody would write with torch's
own parts, as a yardstick.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.bench.ratios import Step
from oelm.costs.inspection import costs_of, model_flops
from oelm.data.tokens import TokenData
from oelm.freezing.apply import freeze
from oelm.freezing.methods import method
from oelm.freezing.schedules import Rates, Schedule
from oelm.models.gpt import GPT, GPTConfig
from oelm.models.sketch import without_memory
from oelm.training.config import TrainingSection
from oelm.training.objectives import LanguageModelling, Objective
from oelm.training.reporting import flops_of
from oelm.training.setup import Parts, with_checkpointing
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
    """0 if they cannot be counted."""


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
    if name in PEERS:
        model: nn.Module = PEERS[name].build(config).to(device)
    else:
        model = GPT(config.with_architecture(method(name).architecture)).to(device)
        freeze(model, name)
    if checkpointing:
        with_checkpointing(getattr(model, "model", model))
    fused = name not in PEERS or PEERS[name].fused_optimizer
    optimizer = build_optimizer(model, settings, fused=fused or None)
    text = random_text(config.vocab_size, length, settings, device)
    flops = flops_per_token(name, config, length, checkpointing)
    return _timed_arm(model, optimizer, text, settings, device, compiled, flops)


def arm_of_run(parts: Parts) -> TimedArm:
    """A run as the trainer begins it, whatever its model and its data are."""
    config, settings = parts.config, parts.config.training
    flops = flops_of(*parts.sketch(), parts.objective, settings)  # which splits what is fused, so not of the model
    torch.manual_seed(config.seed)
    model = parts.build_model(parts.start_from).to(parts.device)
    report = parts.freeze(model, pretrained=parts.start_from is not None)
    rates = Rates.of(model, report, Schedule.of(report, settings.max_steps))
    optimizer = build_optimizer(model, settings, rates)
    if flops and config.runtime.gradient_checkpointing:
        flops = flops.with_checkpointing()
    counted = flops.step if flops else 0
    return _timed_arm(model, optimizer, parts.objective, settings, parts.device, config.runtime.compile, counted)


def _timed_arm(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    settings: TrainingSection,
    device: torch.device,
    compiled: bool,
    flops: int,
) -> TimedArm:
    timer = StepTimer(device, WARMUP)
    take_step = TrainingStep(objective, settings, device, timer)
    called = cast(nn.Module, torch.compile(model)) if compiled else model
    return TimedArm(lambda number: take_step(called, optimizer, number + 1)[0], timer, model, flops)


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
    with without_memory():  # counting splits GPT-2's fused projection: the peer itself stays as it was built
        twin = PEERS[name].counted(config)
    return model_flops(twin, sequence_length=length).step


@dataclass(frozen=True)
class Peer:
    build: Callable[[GPTConfig], nn.Module]
    """A model that takes token ids and targets and gives the mean loss."""
    counted: Callable[[GPTConfig], nn.Module]
    """A model whose matrix products are the peer's, for counting them."""
    fused_optimizer: bool
    """AdamW as our trainer has it; otherwise as torch gives it to whoever asks for nothing."""


class HuggingFaceLoss(nn.Module):
    """GPT-2 behind our call: token ids and targets in, the mean loss out. It shifts the labels itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, targets: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, labels=input_ids.contiguous(), use_cache=False).loss


def gpt2(config: GPTConfig) -> HuggingFaceLoss:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(
        vocab_size=config.vocab_size,
        n_embd=config.d_model,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        n_inner=config.d_ff,
        n_positions=config.max_seq_len,
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    shape._attn_implementation = "sdpa"
    model = GPT2LMHeadModel(shape)
    model.loss_type = "ForCausalLM"  # which it takes anyway, but not without saying so
    return HuggingFaceLoss(model)


class PlainGPT(nn.Module):
    """A decoder in torch's own words: one projection for queries, keys and values, SDPA, all logits at once."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width, wide, self.num_heads = config.d_model, config.d_ff, config.num_heads
        self.drop = nn.Dropout(config.dropout)
        self.tokens, self.positions = nn.Embedding(config.vocab_size, width), nn.Embedding(config.max_seq_len, width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width, bias=False),
                    "output": nn.Linear(width, width, bias=False),
                    "norm2": nn.LayerNorm(width),
                    "ffn": nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)),
                }
            )
            for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.drop(self.tokens(input_ids) + self.positions(places))
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            parts = layer["qkv"](layer["norm1"](x)).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
            dropout = self.drop.p if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
            x = x + self.drop(layer["output"](y.transpose(1, 2).flatten(2)))
            x = x + self.drop(layer["ffn"](layer["norm2"](x)))
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


PEERS = {
    "gpt2": Peer(gpt2, lambda config: gpt2(config).model, fused_optimizer=False),
    "gpt2_fused": Peer(gpt2, lambda config: gpt2(config).model, fused_optimizer=True),
    "plain": Peer(PlainGPT, GPT, fused_optimizer=True),
}
