"""What a run minimises and what it reports: the only place that knows how a batch of data becomes a loss.

The trainer asks an objective for a batch, a loss and a validation; it knows nothing else about the task.
"""

import math
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oelm.data.order import batch_samples
from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.training.config import TrainingSection
from oelm.training.world import ALONE, World

Batch = tuple[Tensor, Tensor]
FORWARD_SHARE = 1 / 3
"""Cost of a forward pass in units of a training step: the backward pass costs two forward passes."""


class Objective(Protocol):
    headline: str
    """The validation value that people look at first."""
    tokens_per_batch: int

    def batch(self, micro_step: int) -> Any: ...
    def loss(self, model: nn.Module, batch: Any) -> Tensor: ...
    def validate(self, model: nn.Module, *, whole: bool) -> dict[str, Any]: ...


class LanguageModelling:
    """Next-token prediction over non-overlapping blocks of `length` tokens; each block once per epoch."""

    headline = "perplexity"

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
        self.num_samples = (len(data.train) - 1) // length
        if self.num_samples < self.batch_size:
            raise OelmError(
                f"{data.path} has {self.num_samples} training sequences of {length} tokens, fewer than one batch of "
                f"{self.batch_size}; prepare more data or lower batch_size or sequence_length"
            )
        if len(data.validation) < 2:
            raise OelmError(f"{data.path} has {len(data.validation)} validation tokens; at least 2 are needed")
        self._part = self._validation_part(settings)

    def batch(self, micro_step: int) -> Batch:
        samples = batch_samples(self.seed, micro_step, self.batch_size, self.num_samples)
        return self._to_device(self._blocks(self.data.train, self.world.share(samples)))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return model(inputs, targets)

    def validate(self, model: nn.Module, *, whole: bool) -> dict[str, float]:
        """Token-weighted over the whole validation set, or over the fixed part that `eval_budget` affords."""

        def measure(blocks: NDArray[np.int64] | None) -> tuple[float, int]:
            inputs, targets = self._validation_batch(blocks)
            return model(inputs, targets).item() * targets.numel(), targets.numel()

        measured = self.world.map(measure, self._validation_batches(whole))
        nats, tokens = sum(n for n, _ in measured), sum(t for _, t in measured)
        loss = nats / tokens
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": loss / math.log(2) / self.data.bytes_per_token,
            "tokens": tokens,
            "share": tokens / (len(self.data.validation) - 1),
        }

    def _validation_part(self, settings: TrainingSection) -> NDArray[np.int64]:
        """Which validation blocks are read on the way: all that the budget affords, evenly spread, always the same."""
        blocks = max(1, (len(self.data.validation) - 1) // self.length)
        wanted: float
        if settings.eval_tokens == "all":
            wanted = blocks
        elif settings.eval_tokens is not None:
            wanted = settings.eval_tokens / self.length
        else:
            between = (settings.eval_every or settings.max_steps) * settings.accumulation * self.batch_size
            wanted = between * settings.eval_budget / FORWARD_SHARE
        count = min(blocks, max(1, round(wanted)))
        return np.linspace(0, blocks, count, endpoint=False).astype(np.int64)

    def _validation_batches(self, whole: bool) -> list[NDArray[np.int64] | None]:
        """The blocks of every batch; None is the last, shorter block: every token counts once."""
        blocks, rest = divmod(len(self.data.validation) - 1, self.length)
        chosen = np.arange(blocks) if whole else self._part[self._part < blocks]
        batches = [chosen[start : start + self.batch_size] for start in range(0, len(chosen), self.batch_size)]
        return [*batches, None] if (whole or not blocks) and rest else [*batches]

    def _validation_batch(self, blocks: NDArray[np.int64] | None) -> Batch:
        tokens = self.data.validation
        if blocks is not None:
            return self._to_device(self._blocks(tokens, blocks))
        tail = tokens[(len(tokens) - 1) // self.length * self.length :]
        return self._to_device(np.asarray(tail, dtype=np.int64)[None])

    def _blocks(self, tokens: NDArray[np.integer], samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B, length + 1): every block with the token that follows it."""
        return np.stack([tokens[i * self.length : (i + 1) * self.length + 1] for i in samples]).astype(np.int64)

    def _to_device(self, blocks: NDArray[np.int64]) -> Batch:
        ids = torch.from_numpy(blocks)
        if self.device.type == "cuda":
            ids = ids.pin_memory().to(self.device, non_blocking=True)
        return ids[:, :-1], ids[:, 1:]
