"""What a run minimises and what it reports: the only place that knows how a batch of data becomes a loss.

The trainer asks an objective for a batch, a loss and a validation; it knows nothing else about the task.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oelm.data.masking import draws, hidden_tokens, hide_spans, mask_tokens, spans
from oelm.data.order import batch_samples
from oelm.data.tokenization import Marks
from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.training.config import TrainingSection
from oelm.training.distributed import ALONE, World

Ids = NDArray[np.int64]
Batch = tuple[Tensor | dict[str, Tensor], Tensor]
"""What a model reads, as ids or by name, and what it should say."""
VALIDATION = 2**63  # no seed
FORWARD_SHARE = 1 / 3
"""Cost of a forward pass in units of a training step: the backward pass costs two forward passes."""


class Objective(Protocol):
    headline: str
    """The validation value that people look at first."""
    tokens_per_batch: int
    true_entropy: float | None
    """The lowest loss that any model can expect, where it is known."""
    reads: dict[str, int]
    """Tokens of a sequence, of its target and of what is predicted, as `oelm.costs.inspection.model_flops` asks."""

    def batch(self, micro_step: int) -> Any: ...
    def loss(self, model: nn.Module, batch: Any) -> Tensor: ...
    def validate(self, model: nn.Module, *, whole: bool) -> dict[str, Any]: ...


class LanguageModelling:
    """Next-token prediction over non-overlapping blocks of `length` tokens; each block once per epoch."""

    headline = "perplexity"
    whole_text = True
    """Whether every token is predicted, so that losses are those of the text."""

    def __init__(
        self,
        data: TokenData,
        settings: TrainingSection,
        *,
        length: int,
        seed: int,
        device: torch.device,
        world: World = ALONE,
    ) -> None:
        self.data, self.length, self.seed, self.device, self.world = data, length, seed, device, world
        self.batch_size = settings.batch_size
        self.tokens_per_batch = self.batch_size * length
        self.reads = {"sequence_length": length}
        self.true_entropy = getattr(data, "true_entropy_nats_per_token", None) if self.whole_text else None
        self.num_samples = (len(data.train) - 1) // length
        if self.num_samples < self.batch_size:
            raise OelmError(
                f"{data.path} has {self.num_samples} training sequences of {length} tokens, fewer than one batch of "
                f"{self.batch_size}; prepare more data or lower batch_size or sequence_length"
            )
        needed = 2 if self.whole_text else length + 1
        if len(data.validation) < needed:
            raise OelmError(f"{data.path} has {len(data.validation)} validation tokens; at least {needed} are needed")
        self._validation_blocks = max(1, (len(data.validation) - 1) // length)
        self._part = validation_part(settings, self._validation_blocks, length)

    def batch(self, micro_step: int) -> Batch:
        samples = batch_samples(self.seed, micro_step, self.batch_size, self.num_samples)
        places = self.world.share(np.arange(len(samples)))
        keys = [(self.seed, micro_step, int(place)) for place in places]
        return self._example(self._blocks(self.data.train, samples[places]), keys)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return model(inputs, targets)

    def _example(self, blocks: Ids, keys: Sequence[tuple[int, ...]]) -> Batch:
        """From blocks with the token that follows each (B, length + 1); chance is a function of a row's key."""
        return to_device(blocks[:, :-1], self.device), to_device(blocks[:, 1:], self.device)

    def validate(self, model: nn.Module, *, whole: bool) -> dict[str, float]:
        """Token-weighted over the whole validation set, or over the fixed part that `eval_budget` affords."""

        def measure(blocks: Ids | None) -> tuple[float, int]:
            inputs, targets = self._validation_batch(blocks)
            return model(inputs, targets).item() * targets.numel(), targets.numel()

        measured = self.world.map(measure, self._validation_batches(whole))
        nats, tokens = sum(n for n, _ in measured), sum(t for _, t in measured)
        values = perplexity(nats, tokens)
        if not self.whole_text:
            return {**values, "share": 1.0 if whole else len(self._part) / self._validation_blocks}
        bits = values["loss"] / math.log(2) / self.data.bytes_per_token
        share = tokens / (len(self.data.validation) - 1)
        return {**values, "bits_per_byte": bits, "tokens": tokens, "share": share}

    def _validation_batches(self, whole: bool) -> list[Ids | None]:
        """The blocks of every batch; None is the last, shorter block: every token counts once."""
        blocks, rest = divmod(len(self.data.validation) - 1, self.length)
        chosen = np.arange(blocks) if whole else self._part[self._part < blocks]
        batches = [chosen[start : start + self.batch_size] for start in range(0, len(chosen), self.batch_size)]
        return [*batches, None] if self.whole_text and (whole or not blocks) and rest else [*batches]

    def _validation_batch(self, blocks: Ids | None) -> Batch:
        tokens = self.data.validation
        if blocks is not None:  # what is hidden in a block is the same for all seeds
            return self._example(self._blocks(tokens, blocks), [(VALIDATION, int(block)) for block in blocks])
        tail = tokens[(len(tokens) - 1) // self.length * self.length :]
        return self._example(np.asarray(tail, dtype=np.int64)[None], [(VALIDATION,)])

    def _blocks(self, tokens: NDArray[np.integer], samples: Ids) -> Ids:
        """(B, length + 1): every block with the token that follows it."""
        return np.stack([tokens[i * self.length : (i + 1) * self.length + 1] for i in samples]).astype(np.int64)


class MaskedModelling(LanguageModelling):
    """Find the hidden tokens of a block again, others at every step: a function of the seed and the step."""

    whole_text = False

    def __init__(self, data: TokenData, settings: TrainingSection, marks: Marks, **how: Any) -> None:
        super().__init__(data, settings, **how)
        self.mask_id = marks.mask
        self.reads["predicted"] = hidden_tokens(self.length)

    def _example(self, blocks: Ids, keys: Sequence[tuple[int, ...]]) -> Batch:
        assert self.mask_id is not None
        numbers = draws(keys, 3 * self.length)
        shown, places, hidden = mask_tokens(blocks[:, :-1], numbers, self.mask_id, self.data.vocab_size)
        return named(self.device, input_ids=shown, places=places), to_device(hidden, self.device)


class Denoising(LanguageModelling):
    """Write the hidden spans of a block (with sentinels, as T5), or the whole block again (with a mask, as BART)."""

    whole_text = False

    def __init__(self, data: TokenData, settings: TrainingSection, marks: Marks, start: int, **how: Any) -> None:
        super().__init__(data, settings, **how)
        hidden, count = spans(self.length)
        self.end, self.start, self.whole_blocks = marks.end, start, not marks.sentinels
        written = self.length if self.whole_blocks else hidden + count
        self.reads = {"sequence_length": self.length - hidden + count + 1, "target_length": written + 1}
        self.marks = marks.sentinels or [marks.mask or 0] * count

    def _example(self, blocks: Ids, keys: Sequence[tuple[int, ...]]) -> Batch:
        numbers = draws(keys, 2 * self.length)
        shown, wanted = hide_spans(blocks[:, :-1], numbers, self.marks, self.end, whole=self.whole_blocks)
        begun = np.pad(wanted[:, :-1], ((0, 0), (1, 0)), constant_values=self.start)
        return named(self.device, input_ids=shown, decoder_input_ids=begun), to_device(wanted, self.device)


def validation_part(settings: TrainingSection, count: int, tokens_each: float) -> Ids:
    """Which validation samples are read on the way: all that the budget affords, evenly spread, always the same."""
    wanted: float
    if settings.eval_tokens == "all":
        wanted = count
    elif settings.eval_tokens is not None:
        wanted = settings.eval_tokens / tokens_each
    else:
        between = (settings.eval_every or settings.max_steps) * settings.accumulation * settings.batch_size
        wanted = between * settings.eval_budget / FORWARD_SHARE
    return np.linspace(0, count, min(count, max(1, round(wanted))), endpoint=False).astype(np.int64)


def perplexity(nats: float, tokens: int) -> dict[str, float]:
    return {"loss": nats / tokens, "perplexity": math.exp(min(nats / tokens, 700.0)), "tokens": tokens}


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def named(device: torch.device, **arrays: NDArray[Any]) -> dict[str, Tensor]:
    return {name: to_device(array, device) for name, array in arrays.items()}
