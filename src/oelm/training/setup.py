"""From a validated config to the parts of a run. Everything that can be refused is refused here, before any work."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oelm.data import labelled
from oelm.data.labelled import TaskData
from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.freezing.apply import freeze, freeze_from_report
from oelm.freezing.methods import method
from oelm.freezing.projections import described_in, note
from oelm.freezing.report import FreezeReport
from oelm.freezing.schedules import Schedule
from oelm.freezing.sites import attention_sites
from oelm.models.gpt import GPT, GPTConfig
from oelm.models.sketch import without_memory
from oelm.runs import RunFolder, checkpoint_bytes, folder_name
from oelm.training import checkpoints
from oelm.training.config import RunConfig
from oelm.training.distributed import ALONE, World
from oelm.training.environment import keep_freed_memory
from oelm.training.objectives import LanguageModelling, Objective

HASHED_BYTES = 4 * 10**9
DEVICES = "auto, cpu, cuda, cuda:N or mps"
LONGEST_UNASKED = 512  # tokens per sequence of a model that has room for any number, or for many thousands
CHECKPOINTS_AT_ONCE = 4  # best, the last two, and the one being written

Data = TokenData | TaskData


@dataclass(frozen=True)
class Parts:
    config: RunConfig  # complete: with what only the data could tell
    data: Data
    objective: Objective
    device: torch.device
    build_model: Callable[[str | Path | None], nn.Module]  # the model with the weights of a folder, or with fresh ones
    start_from: str | None = None  # pretrained weights to start with
    world: World = ALONE
    frozen_by: FreezeReport | None = None  # what stays frozen of the run that it starts from

    def freeze(self, model: nn.Module, pretrained: bool | None = None) -> FreezeReport:
        if self.frozen_by is not None:
            return freeze_again(model, self.frozen_by)
        return freeze(model, self.config.method, seed=self.config.seed, pretrained=pretrained)

    def sketch(self) -> tuple[nn.Module, FreezeReport]:
        """The model frozen, without memory."""
        with without_memory():
            model = self.build_model(None)
            return model, self.freeze(model)


def prepare(config: RunConfig, folder: RunFolder, world: World = ALONE, data: Data | None = None) -> Parts:
    parts = parts_of(config, world, data)
    _require_space(parts, folder)
    return parts


def parts_of(config: RunConfig, world: World = ALONE, data: Data | None = None) -> Parts:
    """The parts of a run that has no folder yet; `data` if they are open already."""
    device = world.own_device(choose_device(config.runtime.device, config.training.precision))
    if config.runtime.threads:
        torch.set_num_threads(config.runtime.threads)
    if device.type == "cpu":
        keep_freed_memory()
    config = config.model_copy(deep=True)
    data = open_data(Path(config.data.path)) if data is None else data
    if config.model.name:
        from oelm.training.stock import stock_parts as make_parts
    else:
        make_parts = _own_parts
    parts = make_parts(config, data, device, world)
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
    return parts


def open_data(path: Path) -> Data:
    """Prepared data whose bytes are those of its manifest; a corpus that takes minutes to hash is trusted by size."""
    if (path / labelled.MANIFEST).is_file():
        return TaskData.open(path, verify=True)
    size = sum(file.stat().st_size for file in path.glob("*.bin"))
    data = TokenData.open(path, verify=size <= HASHED_BYTES)
    data.require_tokenizer()
    return data


def _own_parts(config: RunConfig, data: Data, device: torch.device, world: World) -> Parts:
    """Our GPT, as a language model or as a classifier."""
    possible = "causal" if isinstance(data, TokenData) else "seq2seq" if data.is_pairs else "classification"
    if possible == "seq2seq" or config.model.objective not in (None, possible):
        raise OelmError(
            f"our GPT cannot be trained as {config.model.objective or possible} on {data.path}; it learns causal from "
            "a corpus, classification from a task. For the rest give a model of transformers: --model NAME"
        )
    config.model.objective = None  # the data say it; so records are as before
    gpt = model_config(config, data.vocab_size)
    if isinstance(data, TaskData):
        from oelm.models.stock import gpt_classifier_config

        return classifier_parts(config, data, device, world, gpt_classifier_config(gpt, data.classes), None)
    if not gpt.causal:
        raise OelmError("causal: false lets a language model see what it should predict; it is for classification")
    length = block_length(config, gpt.max_seq_len)
    objective = LanguageModelling(data, config.training, length=length, seed=config.seed, device=device, world=world)

    def build(weights: str | Path | None) -> nn.Module:
        return GPT.from_pretrained(weights) if weights else GPT(gpt)

    return Parts(config, data, objective, device, build, world=world)


def block_length(config: RunConfig, room: int | None, unasked: int | None = None) -> int:
    """Tokens per sequence of a corpus, for a model that has room for so many; `unasked` if the config does not say."""
    if config.training.epochs is not None:
        raise OelmError(
            f"epochs {config.training.epochs:g} are for classification and pairs; give max_steps for a language model"
        )
    length = config.training.sequence_length or unasked or room or LONGEST_UNASKED
    if room is not None and length > room:
        raise OelmError(f"sequence_length {length} exceeds the model's max_seq_len {room}; lower it")
    return length


def with_steps(config: RunConfig, data: TaskData) -> None:
    """Turn epochs, if they are given, into steps; refuse texts that are longer than is asked for."""
    training = config.training
    if training.sequence_length and training.sequence_length < data.longest:
        raise OelmError(
            f"{data.path} has texts of {data.longest} tokens, above sequence_length {training.sequence_length}; "
            f"prepare the task again with --max-length {training.sequence_length}"
        )
    if training.epochs is not None:
        config.training = training.with_steps(data.steps(training.epochs, training.batch_size, training.accumulation))


def classifier_parts(
    config: RunConfig, data: TaskData, device: torch.device, world: World, shape: Any, start_from: str | None
) -> Parts:
    from oelm.models.stock import build, reads_segments
    from oelm.training.classification import Classification
    from oelm.training.stock import require_fit

    with_steps(config, data)
    require_fit(shape, start_from or config.model.name, data, fresh=start_from is None)
    with without_memory():
        segments = config.training.segments and reads_segments(build("classification", shape, None))
    how: dict[str, Any] = {"seed": config.seed, "device": device, "world": world, "pad_id": shape.pad_token_id or 0}
    objective = Classification(data, config.training, segments=segments, **how)
    build_model = partial(build, "classification", shape)
    return Parts(config, data, objective, device, build_model, start_from=start_from, world=world)


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


def model_config(config: RunConfig, vocab_size: int) -> GPTConfig:
    """The vocabulary is the tokenizer's, unless a larger one is asked for; the architecture is the method's."""
    gpt = GPTConfig.of_size(config.model.size, **{"vocab_size": vocab_size, **config.model.overrides})
    gpt = gpt.with_architecture(method(config.method).architecture)
    if gpt.vocab_size < vocab_size:
        raise OelmError(f"vocab_size {gpt.vocab_size} is smaller than the tokenizer's {vocab_size}; leave it out")
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
    report = parts.sketch()[1]
    Schedule.of(report, parts.config.training.max_steps)  # a schedule that the run cannot keep is refused here
    if parts.config.runtime.strategy != "fsdp":  # which shares them out
        require_memory([report], parts.device)
    needed = CHECKPOINTS_AT_ONCE * checkpoint_bytes(report.total_parameters, report.most_trainable_parameters)
    parent = next(p for p in (folder.path, *folder.path.resolve().parents) if p.exists())
    free = shutil.disk_usage(parent).free
    if free < needed and not folder.checkpoints.exists():
        raise OelmError(
            f"{parent} has {free / 1e6:,.0f} MB free, but checkpoints of this model need {needed / 1e6:,.0f} MB; "
            "free some space or choose another --out"
        )


def require_memory(reports: Sequence[FreezeReport], device: torch.device) -> None:
    """Refuse models whose weights, gradients and moments alone are more than the device has altogether."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    else:
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            return  # nobody says
    needed = sum(4 * report.total_parameters + 12 * report.most_trainable_parameters for report in reports)
    if needed > total:
        size = f"{reports[0].total_parameters:,} parameters"
        what = f"a model of {size} takes" if len(reports) == 1 else f"{len(reports)} models of {size} at once take"
        raise OelmError(
            f"{what} {needed / 1e9:.0f} GB to train (weights, gradients, AdamW's moments), but {device} has "
            f"{total / 1e9:.0f} GB; use a smaller model or another device"
        )


def model_folder(name: str, method_name: str, seed: int) -> str:
    """What a model is called: {method} and {seed} filled in, and for a run of ours, which may be the start of another
    one, its best checkpoint: a model folder like any other."""
    filled = name.replace("{method}", folder_name(method_name)).replace("{seed}", str(seed))
    if RunFolder(filled).config_file.is_file():
        return str(checkpoints.resolve(Path(filled)).path)
    if filled != name:
        raise OelmError(f"model {filled} is no run; train it first, or give another with --set model.name=FOLDER")
    return name


def frozen_by(folder: str, config: RunConfig) -> FreezeReport | None:
    """What a checkpoint's run froze, if this run has its method; any other takes the weights for pretrained ones."""
    if not (Path(folder) / checkpoints.MANIFEST).is_file():
        return None
    report, chosen = FreezeReport.from_dict(checkpoints.Checkpoint(Path(folder)).freeze), method(config.method)
    if chosen.to_dict() == report.method.to_dict() and not chosen.moves:
        return report
    if described_in(folder):
        raise OelmError(f"{folder} has projections that only its own method knows; use --method {report.method.name}")
    return None


def freeze_again(model: nn.Module, report: FreezeReport) -> FreezeReport:
    """Freeze what is frozen in the weights that a model starts from, whose names may lack a prefix."""
    attention_sites(model)  # splits what is fused
    parameters, modules = dict(model.named_parameters()), dict(model.named_modules())
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    if any(site.path in modules for site in report.sites):
        prefix = ""
    sites = tuple(
        replace(s, path=prefix + s.path, hashes={prefix + name: digest for name, digest in s.hashes.items()})
        for s in report.sites
    )
    renamed = replace(report, sites=sites, total_parameters=sum(p.numel() for p in parameters.values()))
    if any(p.is_meta for p in parameters.values()):
        for name in parameters.keys() & set(renamed.frozen_names):
            parameters[name].requires_grad_(False)
    else:
        freeze_from_report(model, renamed)
    note(model)
    return replace(renamed, frozen_parameters=sum(p.numel() for p in parameters.values() if not p.requires_grad))
