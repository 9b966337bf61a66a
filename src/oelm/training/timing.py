"""Step times that mean something: device synchronised at both ends, warm-up dropped, split by phase."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

PHASES = ("data", "forward", "backward", "optimizer")
PUBLISHED_WARMUP = 100
SPLIT_EVERY = 10


def now(device: torch.device) -> float:
    """The clock, once the device has done all it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


class StepTimer:
    """Times the phases of each optimizer step: `with timer.step(): with timer.phase("forward"): ...`"""

    def __init__(self, device: torch.device, warmup_steps: int = PUBLISHED_WARMUP) -> None:
        self.device = device
        self.warmup_steps = warmup_steps
        self.rows: list[list[float]] = []  # seconds of the measured steps: the whole step, then each phase
        self.last = 0.0
        self._unmeasured = warmup_steps
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._steps_seen = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        # Waiting for a GPU between phases holds it up, so there only some steps are split; on a CPU it costs nothing.
        self._steps_seen += 1
        split = self.device.type == "cpu" or self._steps_seen % SPLIT_EVERY == 0
        self._phases = dict.fromkeys(PHASES, 0.0 if split else math.nan)
        start = now(self.device)
        yield
        self.last = now(self.device) - start
        if self._unmeasured > 0:
            self._unmeasured -= 1
        else:
            self.rows.append([self.last, *(self._phases[name] for name in PHASES)])

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if math.isnan(self._phases[name]):
            yield
            return
        start = now(self.device)
        yield
        self._phases[name] += now(self.device) - start

    def skip(self, steps: int) -> None:
        """Leave out the next steps: after a resume or a recompilation they are not typical."""
        self._unmeasured = max(self._unmeasured, steps)

    def tensor(self) -> Tensor:
        return torch.tensor(self.rows, dtype=torch.float64).reshape(-1, 1 + len(PHASES))

    def load(self, rows: Tensor) -> None:
        self.rows = rows.tolist()

    def statistics(self) -> dict[str, Any]:
        """The published field names, and how a step's time is shared among its phases."""
        if not self.rows:
            return {"num_steps_measured": 0, "warmup_steps_excluded": self.warmup_steps}
        table = np.array(self.rows)
        steps = table[:, 0]
        split = table[~np.isnan(table).any(axis=1)]
        shares = {}
        if len(split):  # on a GPU only some steps are
            shares = {f"{name}_share": split[:, i + 1].sum() / split[:, 0].sum() for i, name in enumerate(PHASES)}
            shares["other_share"] = 1 - sum(shares.values())
        seconds = {
            "mean_step_time": steps.mean(),
            "median_step_time": np.median(steps),
            "std_step_time": steps.std(),
            "min_step_time": steps.min(),
            "max_step_time": steps.max(),
            "p95_step_time": np.percentile(steps, 95),
            "p99_step_time": np.percentile(steps, 99),
            **shares,
        }
        counts = {"num_steps_measured": len(steps), "warmup_steps_excluded": self.warmup_steps}
        return {name: float(value) for name, value in seconds.items()} | counts
