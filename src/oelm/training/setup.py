"""From a validated config to the parts of a run. Everything that can be refused is refused here, before any work."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from oelm.data import labelled
from oelm.data.labelled import TaskData
from oelm.data.tokenization import load_tokenizer, template_hash, tokenizer_hash
from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.freezing.apply import freeze
from oelm.freezing.methods import method
from oelm.freezing.schedules import Schedule
from oelm.models.gpt import GPT, GPTConfig
from oelm.runs import RunFolder, checkpoint_bytes
from oelm.training.config import RunConfig
from oelm.training.environment import keep_freed_memory
from oelm.training.objectives import LanguageModelling, Objective
from oelm.training.world import ALONE, World

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HASHED_BYTES = 4 * 10**9
DEVICES = "auto, cpu, cuda, cuda:N or mps"
CHECKPOINTS_AT_ONCE = 4
"""best, the last two, and the one being written."""


@dataclass(frozen=True)
class Parts:
    config: RunConfig
    """Complete: with what only the data could tell."""
    data: TokenData | TaskData
    objective: Objective
    device: torch.device
    build_model: Callable[[str | Path | None], nn.Module]
    """The model with the weights of a folder, or with fresh ones."""
    start_from: str | None = None
    """Pretrained weights to start with."""
    world: World = ALONE


def prepare(config: RunConfig, folder: RunFolder, world: World = ALONE) -> Parts:
    device = world.own_device(choose_device(config.runtime.device, config.training.precision))
    world.require_fit(config, device)
    if config.runtime.threads:
        torch.set_num_threads(config.runtime.threads)
    if device.type == "cpu":
        keep_freed_memory()
    is_task = (Path(config.data.path) / labelled.MANIFEST).is_file()
    parts = (_classification if is_task else _language_modelling)(config.model_copy(deep=True), device, world)
    if config.runtime.gradient_checkpointing:
        build = parts.build_model
        parts = replace(parts, build_model=lambda weights: with_checkpointing(build(weights)))
    wanted, found = config.data.fingerprint, parts.data.fingerprint
    if wanted not in (None, found):
        raise OelmError(
            f"{parts.data.path} has fingerprint {found}, but this run was made with {wanted}; "
            "prepare the same data with the same tokenizer again, or start a new run"
        )
    parts.config.data.fingerprint = found
    _require_space(parts, folder)
    return parts


def _language_modelling(config: RunConfig, device: torch.device, world: World) -> Parts:
    if config.model.encoder:
        raise OelmError(
            f"encoder {config.model.encoder!r} is for classification, but {config.data.path} is no prepared task; "
            "prepare one with 'oelm data task', or train our GPT (model.size)"
        )
    if config.training.epochs is not None:
        raise OelmError(
            f"epochs {config.training.epochs:g} are for classification; give max_steps for a language model"
        )
    data = _open_data(Path(config.data.path))
    gpt = model_config(config, data.vocab_size)
    if not gpt.causal:
        raise OelmError("causal: false lets a language model see what it should predict; it is for classification")
    length = config.training.sequence_length or gpt.max_seq_len
    if length > gpt.max_seq_len:
        raise OelmError(f"sequence_length {length} exceeds the model's max_seq_len {gpt.max_seq_len}; lower it")
    objective = LanguageModelling(data, config.training, length=length, seed=config.seed, device=device, world=world)

    def build(weights: str | Path | None) -> nn.Module:
        return GPT.from_pretrained(weights) if weights else GPT(gpt)

    return Parts(config, data, objective, device, build, world=world)


def _classification(config: RunConfig, device: torch.device, world: World) -> Parts:
    from oelm.models import classifiers
    from oelm.training.classification import Classification

    data, encoder, training = TaskData.open(config.data.path, verify=True), config.model.encoder, config.training
    if training.sequence_length and training.sequence_length < data.longest:
        raise OelmError(
            f"{data.path} has texts of {data.longest} tokens, above sequence_length {training.sequence_length}; "
            f"prepare the task again with --max-length {training.sequence_length}"
        )
    if encoder:
        shape = classifiers.encoder_config(encoder, data.classes)
    else:
        shape = classifiers.gpt_classifier_config(model_config(config, data.vocab_size), data.classes)
    _require_fit(shape, encoder, data)
    with torch.device("meta"):
        empty = classifiers.build_classifier(shape, None)
    if training.epochs is not None:
        steps = data.steps(training.epochs, training.batch_size, training.accumulation)
        config.training = training.with_steps(steps)
    objective = Classification(
        data,
        config.training,
        seed=config.seed,
        device=device,
        pad_id=shape.pad_token_id or 0,
        segments=config.training.segments and classifiers.reads_segments(empty),
        world=world,
    )
    build = partial(classifiers.build_classifier, shape)
    return Parts(config, data, objective, device, build, start_from=encoder, world=world)


def with_checkpointing(model: nn.Module) -> nn.Module:
    """Have the model keep its blocks' inputs only, and compute the rest again in the backward pass."""
    ours = [module for module in model.modules() if isinstance(module, GPT)]
    for gpt in ours:
        gpt.gradient_checkpointing = True
    if ours:
        return model
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise OelmError(f"gradient_checkpointing: {type(model).__name__} cannot do it; leave it out")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
    return model


def _open_data(path: Path) -> TokenData:
    """Prepared data whose bytes are those of its manifest; a corpus that takes minutes to hash is trusted by size."""
    size = sum(file.stat().st_size for file in path.glob("*.bin"))
    data = TokenData.open(path, verify=size <= HASHED_BYTES)
    data.require_tokenizer()
    return data


def _require_fit(config: Any, encoder: str | None, data: TaskData) -> None:
    """Refuse data that the model cannot read: another tokenizer, ids out of range, longer texts."""
    from oelm.models.classifiers import longest_input

    name = encoder or "the model"
    if encoder and (own := _own_tokenizer(encoder)):
        if tokenizer_hash(own) != data.tokenizer_hash:
            raise OelmError(
                f"the data were tokenised with tokenizer {data.tokenizer_hash[:12]}, but {encoder} has "
                f"{tokenizer_hash(own)[:12]}; prepare the task again with --tokenizer {encoder}"
            )
        if data.template_hash not in (None, template_hash(own)):
            raise OelmError(
                f"the data have other special tokens than {encoder} adds; "
                f"prepare the task again with --tokenizer {encoder}"
            )
    if data.vocab_size > config.vocab_size:
        raise OelmError(
            f"the data's tokenizer has {data.vocab_size} ids, but {name} only {config.vocab_size}; "
            "prepare the task again with the model's own tokenizer"
        )
    room = longest_input(config)
    if room is not None and data.longest > room:
        raise OelmError(
            f"the data have texts of {data.longest} tokens, but {name} reads at most {room}; "
            f"prepare the task again with --max-length {room}"
        )


def _own_tokenizer(encoder: str) -> "Tokenizer | None":
    """The tokenizer that the encoder comes with; None if it comes without one."""
    try:
        has_file = (Path(encoder) / "tokenizer.json").is_file()
        return load_tokenizer(encoder) if has_file else labelled.model_tokenizer(encoder)
    except OelmError:
        return None


def model_config(config: RunConfig, vocab_size: int) -> GPTConfig:
    """The vocabulary is the tokenizer's, unless a larger one is asked for; the architecture is the method's."""
    gpt = GPTConfig.of_size(config.model.size, **{"vocab_size": vocab_size, **config.model.overrides})
    gpt = gpt.with_architecture(method(config.method).architecture)
    if gpt.vocab_size < vocab_size:
        raise OelmError(
            f"vocab_size {gpt.vocab_size} is smaller than the tokenizer's {vocab_size}; "
            f"leave it out or give at least {vocab_size}"
        )
    return gpt


def choose_device(wanted: str, precision: str) -> torch.device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise OelmError(f"device {wanted!r} is unknown; use {DEVICES}") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise OelmError(f"device {wanted!r} is not supported; use {DEVICES}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise OelmError(f"device {wanted!r} does not exist; this machine, or its torch, has no Metal GPU")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise OelmError(f"device {wanted!r} does not exist; this machine has {count} CUDA devices")
    if precision == "fp16" and device.type != "cuda":
        raise OelmError("precision fp16 needs a CUDA device; use bf16 or fp32 on the CPU")
    return device


def _require_space(parts: Parts, folder: RunFolder) -> None:
    """Build and freeze without memory: the method must fit the model, and the disk must hold its checkpoints."""
    with torch.device("meta"):
        report = freeze(parts.build_model(None), parts.config.method, seed=parts.config.seed)
    Schedule.of(report, parts.config.training.max_steps)  # a schedule that the run cannot keep is refused here
    needed = CHECKPOINTS_AT_ONCE * checkpoint_bytes(report.total_parameters, report.most_trainable_parameters)
    parent = next(p for p in (folder.path, *folder.path.resolve().parents) if p.exists())
    free = shutil.disk_usage(parent).free
    if free < needed and not folder.checkpoints.exists():
        raise OelmError(
            f"{parent} has {free / 1e9:.1f} GB free, but checkpoints of this model need {needed / 1e9:.1f} GB; "
            "free some space or choose another --out"
        )
