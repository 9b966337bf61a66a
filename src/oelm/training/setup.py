"""From a validated config to the parts of a run. Everything that can be refused is refused here, before any work."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.freezing import freeze
from oelm.models.gpt import GPT, GPTConfig
from oelm.runs import RunFolder, checkpoint_bytes
from oelm.training.config import RunConfig
from oelm.training.objectives import LanguageModelling, Objective

HASHED_BYTES = 4 * 10**9
CHECKPOINTS_AT_ONCE = 4
"""best, the last two, and the one being written."""


@dataclass(frozen=True)
class Parts:
    config: RunConfig
    data: TokenData
    objective: Objective
    device: torch.device
    build_model: Callable[[], nn.Module]


def prepare(config: RunConfig, folder: RunFolder) -> Parts:
    data = _open_data(Path(config.data.path))
    if config.data.fingerprint not in (None, data.fingerprint):
        raise OelmError(
            f"{data.path} has fingerprint {data.fingerprint}, but this run was made with {config.data.fingerprint}; "
            "prepare the same data with the same tokenizer again, or start a new run"
        )
    gpt = model_config(config, data.vocab_size)
    length = config.training.sequence_length or gpt.max_seq_len
    if length > gpt.max_seq_len:
        raise OelmError(f"sequence_length {length} exceeds the model's max_seq_len {gpt.max_seq_len}; lower it")
    device = choose_device(config.runtime.device, config.training.precision)
    if config.runtime.threads:
        torch.set_num_threads(config.runtime.threads)
    objective = LanguageModelling(data, config.training, length=length, seed=config.seed, device=device)
    _check_on_meta(config, gpt, folder)
    complete = config.model_copy(deep=True)
    complete.data.fingerprint = data.fingerprint
    return Parts(complete, data, objective, device, lambda: GPT(gpt))


def _open_data(path: Path) -> TokenData:
    """Prepared data whose bytes are those of its manifest; a corpus that takes minutes to hash is trusted by size."""
    size = sum(file.stat().st_size for file in path.glob("*.bin"))
    return TokenData.open(path, verify=size <= HASHED_BYTES)


def model_config(config: RunConfig, vocab_size: int) -> GPTConfig:
    """The vocabulary is the tokenizer's, unless a larger one is asked for."""
    gpt = GPTConfig.of_size(config.model.size, **{"vocab_size": vocab_size, **config.model.overrides})
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
        raise OelmError(f"device {wanted!r} is unknown; use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise OelmError(f"device {wanted!r} is not supported; use auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise OelmError(f"device {wanted!r} does not exist; this machine has {count} CUDA devices")
    if precision == "fp16" and device.type != "cuda":
        raise OelmError("precision fp16 needs a CUDA device; use bf16 or fp32 on the CPU")
    return device


def _check_on_meta(config: RunConfig, gpt: GPTConfig, folder: RunFolder) -> None:
    """Build and freeze without memory: the method must fit the model, and the disk must hold its checkpoints."""
    with torch.device("meta"):
        report = freeze(GPT(gpt), config.method, seed=config.seed)
    needed = CHECKPOINTS_AT_ONCE * checkpoint_bytes(report.total_parameters, report.trainable_parameters)
    parent = next(p for p in (folder.path, *folder.path.resolve().parents) if p.exists())
    free = shutil.disk_usage(parent).free
    if free < needed and not folder.checkpoints.exists():
        raise OelmError(
            f"{parent} has {free / 1e9:.1f} GB free, but checkpoints of this model need {needed / 1e9:.1f} GB; "
            "free some space or choose another --out"
        )
