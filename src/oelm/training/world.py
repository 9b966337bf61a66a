"""Who trains a model: here one process alone; `oelm.training.distributed` has one of several.

The methods of `World` do nothing, so that the trainer has one path.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oelm.runs import RunFolder
from oelm.training.config import RunConfig

Item = TypeVar("Item")
Result = TypeVar("Result")


class World:
    """One process, alone: everything is its own, and there is nobody to tell."""

    rank, size = 0, 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @property
    def facts(self) -> dict[str, Any]:
        """For environment.json."""
        return {}

    # Before the start

    def folder(self, path: str | Path) -> RunFolder:
        return RunFolder(path)

    def own_device(self, device: torch.device) -> torch.device:
        return device

    def connected(self, config: RunConfig, folder: RunFolder) -> contextlib.AbstractContextManager[None]:
        """All processes, agreed on what they are about to do; they leave together."""
        return contextlib.nullcontext()

    def peers(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the loss of another process is an error that says so."""
        return contextlib.nullcontext()

    def require_same(self, facts: dict[str, Any]) -> None:
        """Refuse to go on unless all processes have these facts in common."""

    # The model

    def home(self, device: torch.device) -> torch.device:
        """Where the whole model is built."""
        return device

    def from_leader(self, model: nn.Module, facts: dict[str, Any]) -> dict[str, Any]:
        """Give every process the weights and the facts of the first: machines round differently."""
        return facts

    def wrap(self, model: nn.Module, *, pausing: bool = False) -> nn.Module:
        """The model to train with. Must be called again when parameters begin or cease to train.

        `pausing` says that some have a gradient only at some steps.
        """
        return model

    def settle(self, model: nn.Module) -> None:
        """Called after passes without a backward one: the model's parameters are again those that train."""

    # A step

    def begin(self, step: int) -> None:
        """Called before each step."""

    def share(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """This process's part of a batch."""
        return samples

    def share_gradients(self, now: bool) -> None:
        """Whether the next backward pass ends a step, so that gradients are exchanged."""

    def mean(self, value: Tensor) -> Tensor:
        return value

    def agreed(self, signal_number: int | None) -> int | None:
        """The signal that any process has got."""
        return signal_number

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results of all items, in order."""
        return [work(item) for item in items]

    # Whole tensors

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors as one process would have them; only the first process gets them, but all must ask."""
        return dict(tensors)

    def weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        """What to save of the model, unless it is what the model itself would save."""
        return None


ALONE = World()


def gathered(tensor: Tensor) -> Tensor:
    """A tensor as one process would have it; all processes must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
