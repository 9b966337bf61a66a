"""A run small enough to train in a second, with everything switched on that could break determinism."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oelm.training.config import RunConfig

SMALL = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "max_seq_len": 32, "dropout": 0.1}
TRAINING = {
    "max_steps": 12,
    "batch_size": 4,
    "accumulation": 2,
    "max_lr": 3e-3,
    "warmup_steps": 3,
    "eval_every": 4,
    "eval_tokens": 512,
    "log_every": 1,
}


@pytest.fixture
def config(fables_folder: Path) -> Callable[..., RunConfig]:
    """config("oelm_freeze", max_steps=5): training settings by keyword; `model` and `runtime` as mappings."""

    def build(method: str = "oelm_freeze", *, seed: int = 0, model: dict[str, Any] | None = None, **training: Any):
        return RunConfig.parse(
            {
                "method": method,
                "seed": seed,
                "model": {"size": "demo", "overrides": {**SMALL, **(model or {})}},
                "data": {"path": str(fables_folder)},
                "training": {**TRAINING, **training},
                "runtime": {"device": "cpu", "threads": 1},
            }
        )

    return build
