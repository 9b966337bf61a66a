"""How much memory a training step really takes, measured in a process of its own: a process seldom gives any back.

    python -m oelm.training.footprint '{"arm": "baseline", "shape": {"size": "tiny", "batch": 2}}'

What counts is the most that the process ever held, less what it held with all libraries loaded and nothing built.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from oelm.bench.protocol import Shape
from oelm.errors import OelmError

STEPS = 2
"""The first step makes the optimizer's moments; the second is like all others."""


def measure(arm: str, shape: Shape, *, steps: int = STEPS, **options: Any) -> dict[str, float]:
    """Peak bytes and last loss of a few training steps of one arm. Options: those of `build_arm`."""
    request = json.dumps({"arm": arm, "shape": asdict(shape), "steps": steps, **options})
    command = [sys.executable, "-m", "oelm.bench.footprint", request]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["killed, probably for want of memory"]
        raise OelmError(f"measuring {arm} at {shape} failed: {last[0]}")
    return json.loads(done.stdout.splitlines()[-1])


def _measure_here(arm: str, shape: Shape, steps: int, keep_freed: bool = True, **options: bool) -> dict[str, float]:
    import torch
    import transformers  # noqa: F401 - every arm pays for it, so that only the step differs

    from oelm.bench.arms import build_arm
    from oelm.training.environment import keep_freed_memory, peak_memory_bytes

    if keep_freed:
        keep_freed_memory()  # as the trainer does
    _touch_libraries(arm)
    before = peak_memory_bytes()
    built = build_arm(arm, shape.model(), shape.settings(), device=torch.device("cpu"), **options)
    losses = [built.step() for _ in range(steps)]
    return {"bytes": peak_memory_bytes() - before, "loss": float(losses[0])}  # type: ignore[arg-type]


def _touch_libraries(arm: str) -> None:
    """Make every library allocate what it keeps for itself: threads, kernels, product buffers, modules loaded late."""
    import torch

    from oelm.bench.arms import build_arm

    little = Shape("demo", batch=1, length=160, vocab=64)
    for name in dict.fromkeys(("baseline", arm)):
        build_arm(name, little.model(), little.settings(), device=torch.device("cpu")).step()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(_measure_here(asked.pop("arm"), Shape(**asked.pop("shape")), **asked)))
