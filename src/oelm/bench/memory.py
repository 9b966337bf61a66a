"""How much memory a training step really takes, beside what `oelm.costs` predicts (`oelm bench --memory`).

Measured in a process of its own, because a process seldom gives memory back:

    python -m oelm.bench.memory '{"arm": "baseline", "shape": {"size": "tiny", "batch": 2}}'

What counts is the most that the process ever held, less what it held with all libraries loaded and nothing built.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from oelm.bench.measure import Shape
from oelm.bench.names import PEERS
from oelm.costs.inspection import costs_of
from oelm.costs.memory import Memory
from oelm.errors import OelmError

STEPS = 2  # the first step makes the optimizer's moments; the second is like all others


def memory_of(arm: str, shape: Shape, **options: Any) -> dict[str, float | None]:
    """Measured peak bytes of an arm's step, and the predicted ones where there is a formula: for our own methods."""
    return {
        "predicted_bytes": predicted_memory(arm, shape).peak_bytes if arm not in PEERS else None,
        "measured_bytes": measured_memory(arm, shape, **options),
    }


def predicted_memory(arm: str, shape: Shape, checkpointing: bool = False) -> Memory:
    found = costs_of(shape.model(), arm, batch_size=shape.batch, gradient_checkpointing=checkpointing).memory
    assert found is not None  # our GPT has a formula
    return found


def measured_memory(arm: str, shape: Shape, **options: Any) -> float:
    """Peak bytes of a few training steps of one arm. Options: `keep_freed`, and those of `build_arm`."""
    request = json.dumps({"arm": arm, "shape": asdict(shape), **options})
    command = [sys.executable, "-m", "oelm.bench.memory", request]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["killed, probably for want of memory"]
        raise OelmError(f"measuring {arm} at {shape} failed: {last[0]}")
    return float(done.stdout.splitlines()[-1])


def _measure_here(arm: str, shape: Shape, keep_freed: bool = True, **options: bool) -> float:
    import torch
    import transformers  # noqa: F401 - every arm pays for it, so that only the step differs

    from oelm.bench.steps import build_arm
    from oelm.training.environment import keep_freed_memory, peak_memory_bytes

    if keep_freed:
        keep_freed_memory()  # as the trainer does
    device, little = torch.device("cpu"), Shape("demo", batch=1, length=160, vocab=64)
    for name in dict.fromkeys(("baseline", arm)):  # libraries allocate what they keep for themselves
        build_arm(name, little.model(), little.settings(), device=device).step(0)
    before = peak_memory_bytes()
    built = build_arm(arm, shape.model(), shape.settings(), device=device, **options)
    for number in range(STEPS):
        built.step(number)
    return peak_memory_bytes() - before


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(_measure_here(asked.pop("arm"), Shape(**asked.pop("shape")), **asked))
