"""The timing protocol as a function: any arms and peers of one shape, interleaved, beside what physics allows.

Untimed warm-up; the device synchronised at both ends of every step; arms visited A-B-…-B-A in one process; ratios taken
round by round, with a 95 % bootstrap interval of their median. The matmul peak is measured in the same process before
and after the steps. `times_limit` is a step's median time over (its matmul FLOPs ÷ that peak): 1 would be a step that
does nothing but multiply matrices, at the best speed seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oelm.bench.arms import WARMUP, TimedArm, arm_name, build_arm
from oelm.bench.interleaved import Step, interleave, ratio
from oelm.bench.peak import best_speeds, gemm_shapes, gemm_speeds
from oelm.errors import OelmError
from oelm.models.shape import GPTConfig
from oelm.training.config import TrainingSection
from oelm.training.environment import allow_recompiling, environment, keep_freed_memory
from oelm.training.timing import PHASES

FEWEST_ROUNDS = 6
"""With fewer, not even the lowest and the highest value enclose a median with 95 % certainty."""
Say = Callable[[str, int, int], None]
"""What is being done, and how many of how many steps are."""


@dataclass(frozen=True)
class Shape:
    """What all arms of a benchmark have in common."""

    size: str = "tiny"
    batch: int = 4
    length: int | None = None
    """None: as long as the size allows."""
    vocab: int = 4096
    dropout: float = 0.0

    def model(self) -> GPTConfig:
        """The size, with as many positions as the sequences need."""
        chosen = {} if self.length is None else {"max_seq_len": self.length}
        return GPTConfig.of_size(self.size, vocab_size=self.vocab, dropout=self.dropout, **chosen)

    def settings(self) -> TrainingSection:
        return TrainingSection(max_steps=1000, batch_size=self.batch, sequence_length=self.model().max_seq_len)


def bench(
    arms: Sequence[str],
    shape: Shape,
    *,
    reference: str | None = None,
    rounds: int = 12,
    compiled: bool = False,
    device: torch.device | None = None,
    keep_freed: bool = True,
    say: Say = lambda what, done, total: None,
) -> dict[str, Any]:
    """Time the arms side by side; the reference is the first of them unless named. The result is plain JSON.

    `keep_freed` says whether freed memory stays in the process, as our trainer has it, or goes back at the C library's
    own discretion.
    """
    device = device or torch.device("cpu")
    names = list(dict.fromkeys(arm_name(name) for name in ([reference, *arms] if reference else arms)))
    _require(names, rounds)
    if device.type == "cpu" and keep_freed:
        keep_freed_memory()
    config, settings = shape.model(), shape.settings()
    tokens = shape.batch * config.max_seq_len
    products = gemm_shapes(tokens, config.d_model, config.d_ff, config.vocab_size)
    say("measuring the matmul peak", 0, 0)
    before = gemm_speeds(products, device)
    if compiled:
        allow_recompiling(len(names))  # all of them are versions of one model
    built = {}
    for name in names:
        say(f"building {name}", 0, 0)
        built[name] = build_arm(name, config, settings, device=device, compiled=compiled)
    steps = {name: _explained(name, arm.step) if compiled else arm.step for name, arm in built.items()}
    what = "compiling, then timing" if compiled else "timing"
    seconds = interleave(steps, rounds=rounds, warmup=WARMUP, watch=lambda done, total: say(what, done, total))
    say("measuring the matmul peak again", 0, 0)
    speeds = best_speeds(before, gemm_speeds(products, device))
    peak = max(row["flops_per_second"] for row in speeds)
    return {
        "shape": {**asdict(shape), "length": config.max_seq_len},
        "protocol": _protocol(rounds, compiled, device),
        "environment": environment(str(device)),
        "gemm": {"peak_flops_per_second": peak, "shapes": speeds},
        "reference": names[0],
        "arms": {
            name: _facts(arm, seconds[name], tokens, peak)
            | _comparison(seconds[name], seconds[names[0]], arm.flops_per_token / built[names[0]].flops_per_token)
            for name, arm in built.items()
        },
    }


def _protocol(rounds: int, compiled: bool, device: torch.device) -> dict[str, Any]:
    return {
        "order": "A-B-…-B-A in one process",
        "rounds": rounds,
        "warmup_steps": WARMUP,
        "compiled": compiled,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "precision": "fp32",
        "optimizer": "AdamW, gradients clipped at norm 1",
        "interval": "95 % bootstrap of the median of per-round ratios",
    }


def _facts(arm: TimedArm, seconds: NDArray[np.float64], tokens: int, peak: float) -> dict[str, Any]:
    """What one arm does by itself."""
    flops, median = arm.flops_per_token * tokens, float(np.median(seconds))
    statistics, parameters = arm.timer.statistics(), list(arm.model.parameters())
    return {
        "median_seconds": median,
        "quartiles_seconds": [float(q) for q in np.percentile(seconds, [25, 75])],
        "tokens_per_second": tokens / median,
        "step_flops": flops,
        "limit_seconds": flops / peak,
        "times_limit": median * peak / flops,
        "shares": {name: statistics.get(f"{name}_share") for name in (*PHASES, "other")},
        "parameters": sum(p.numel() for p in parameters),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "seconds": [float(value) for value in seconds],
    }


def _comparison(seconds: NDArray[np.float64], reference: NDArray[np.float64], predicted: float) -> dict[str, Any]:
    """Where it stands beside the reference, and where its FLOPs say it should."""
    compared = ratio(seconds, reference)
    kept = {name: compared[name] for name in ("ratio", "low", "high", "rounds", "differs")}
    if seconds is reference:
        verdict = "reference"
    elif not compared["differs"]:
        verdict = "no difference"
    else:
        verdict = "faster" if compared["high"] < 1 else "slower"
    return {**kept, "predicted": predicted, "verdict": verdict}


def _require(names: list[str], rounds: int) -> None:
    if not names:
        raise OelmError("no arms to time; name methods ('oelm methods') or peers (gpt2, bert)")
    if rounds < FEWEST_ROUNDS:
        raise OelmError(f"{rounds} rounds say nothing about the spread; use at least {FEWEST_ROUNDS}")


def _explained(name: str, step: Step) -> Step:
    """torch.compile fails at the first step, with errors of many types; whoever asked for it needs one line."""

    def guarded() -> object:
        try:
            return step()
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise OelmError(
                f"torch.compile could not run arm {name!r} ({type(error).__name__}: {reason}); leave --compile out"
            ) from error

    return guarded
