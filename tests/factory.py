"""Run folders as training would leave them, with numbers that look real, in milliseconds and without torch."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from oelm.files import write_json
from oelm.runs import FINISHED, RUNNING, RunFolder

TOTAL, QK = 890_000, 131_072
TOKENS_PER_STEP = 2_048
TRUE_ENTROPY = 1.02
FINAL = {"baseline": 3.42, "oelm_freeze": 3.61, "oelm_random": 4.05, "oelm_random_matched": 3.58}
FROZEN_SHARE = {"oelm_freeze": 1.0, "oelm_random": 1.0, "oelm_random_matched": 1.0, "q_only": 0.5, "k_only": 0.5}
ENVIRONMENT = {
    "python": "3.11.7",
    "platform": "Linux-6.1-x86_64",
    "processor": "Example CPU",
    "cores": 2,
    "packages": {"oelm": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
    "git_commit": "0123456789abcdef0123456789abcdef01234567",
    "device": "cpu",
}


def config(
    method: Any = "baseline", seed: int = 0, steps: int = 1_000, dataset: str = "fables", **training: Any
) -> dict:
    settings = {
        "max_steps": steps,
        "batch_size": 16,
        "max_lr": 3e-3,
        "min_lr": 3e-4,
        "eval_every": steps // 10,
        **training,
    }
    return {
        "method": method,
        "seed": seed,
        "model": {"size": "demo", "overrides": {}},
        "data": {"path": f"data/{dataset}", "fingerprint": f"{dataset}-fingerprint"},
        "training": settings,
        "runtime": {"device": "cpu", "threads": 1 + seed, "compile": False, "trackers": []},
    }


def make_run(
    root: Path,
    method: Any = "baseline",
    seed: int = 0,
    *,
    name: str | None = None,
    perplexity: float | None = None,
    final: dict[str, float] | None = None,
    finished: bool = True,
    state: str = RUNNING,
    dataset: str = "fables",
    steps: int = 1_000,
    step_seconds: float | None = None,
    true_entropy: float | None = TRUE_ENTROPY,
    config_changes: dict[str, Any] | None = None,
    **training: Any,
) -> RunFolder:
    """A run folder; `perplexity` is the final one; otherwise most noise is the seed's, shared by all methods."""
    method_name = method["name"] if isinstance(method, dict) else method
    wobble = np.random.default_rng([seed, sum(method_name.encode())])
    noise = np.random.default_rng(seed).normal(0, 0.006) + wobble.normal(0, 0.002)
    goal = perplexity or FINAL.get(method_name, 3.7) * math.exp(noise)
    folder = RunFolder(root / (name or f"{method_name}-s{seed}"))
    folder.create({**config(method, seed, steps, dataset, **training), **(config_changes or {})})
    write_json(folder.environment_file, ENVIRONMENT)
    seconds_per_step = step_seconds or {"baseline": 0.100}.get(method_name, 0.095)
    until = steps if finished else steps // 2
    every = steps // 10
    for step in range(every // 2, until + 1, every // 2):
        loss = math.log(goal) + 5.5 * math.exp(-step / steps * 7) * (1 - step / steps) + wobble.normal(0, 0.004)
        seconds = step * seconds_per_step * (1 + wobble.normal(0, 0.01))
        row = {
            "kind": "train",
            "step": step,
            "loss": loss,
            "lr": 1e-3,
            "grad_norm": 0.7,
            "tokens": step * TOKENS_PER_STEP,
        }
        folder.append_metrics(row)
        folder.append_clock({"step": step, "seconds": seconds, "step_seconds": seconds_per_step})
        if step % every == 0:
            values = final_values(math.exp(loss)) if final is None else {**final, "loss": loss}
            folder.append_metrics({"kind": "validation", "step": step, **values, "share": 0.2})
    if not finished:
        folder.set_status(state, step=until, max_steps=steps)
        return folder
    frozen = int(QK * FROZEN_SHARE.get(method_name, 0.0))
    result = {
        "method": method_name,
        "seed": seed,
        "dataset": dataset,
        "data_fingerprint": f"{dataset}-fingerprint",
        "steps": steps,
        "tokens": steps * TOKENS_PER_STEP,
        "final": final or final_values(goal),
        "best": {"loss": math.log(goal), "step": steps},
        "true_entropy": true_entropy,
        "total_parameters": TOTAL,
        "frozen_parameters": frozen,
        "trainable_parameters": TOTAL - frozen,
        "frozen_verified": True,
        "worst_orthonormality_error": 3e-7 if frozen else None,
        "training_seconds": steps * seconds_per_step,
        "validation_seconds": steps * seconds_per_step * 0.03,
        "median_step_time": seconds_per_step,
        "peak_memory_bytes": 600 * 2**20,
    }
    write_json(folder.result_file, result)
    folder.set_status(FINISHED, step=steps, max_steps=steps)
    return folder


def final_values(perplexity: float) -> dict[str, float]:
    loss = math.log(perplexity)
    return {
        "loss": loss,
        "perplexity": perplexity,
        "bits_per_byte": loss / math.log(2) / 3.8,
        "tokens": 50_000,
        "share": 1.0,
    }


def make_suite(root: Path, methods: tuple[str, ...] = tuple(FINAL), seeds: tuple[int, ...] = (0, 1, 2)) -> Path:
    """All methods × seeds, the interleaved step times and text samples beside them."""
    for method in methods:
        for seed in seeds:
            make_run(root, method, seed)
    write_step_times(root)
    write_json(
        root / "samples.json",
        {m: {"prompt": "One day", "text": f" a little <fox> & {m} went out."} for m in methods},
    )
    return root


def write_step_times(root: Path) -> None:
    arms = {
        "oelm_freeze": {"ratio": 0.957, "low": 0.944, "high": 0.969, "predicted": 0.971},
        "oelm_random": {"ratio": 0.962, "low": 0.948, "high": 0.981, "predicted": 0.971},
        "oelm_random_matched": {"ratio": 0.985, "low": 0.962, "high": 1.006, "predicted": 0.971},
    }
    protocol = {"order": "A-B-B-A", "repeats": 5, "warmup_steps": 10}
    write_json(root / "step_time.json", {"protocol": protocol, "reference": "baseline", "arms": arms})
