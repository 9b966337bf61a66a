"""The benchmark: any methods and peers of one shape, interleaved, beside what FLOPs and the machine allow.

Untimed warm-up; the device synchronised at both ends of every step; arms in the order of `oelm.bench.ratios`. The
matmul peak is measured in the same process before and after the steps. `times_limit` is a step's median time over (its
matmul FLOPs ÷ that peak): 1 would be a step that does nothing but multiply matrices, at the best speed seen. Products
that find their operands in main memory do not reach it: medium-512's took 1.43 times as long (results/bench-cpu).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oelm.bench.names import arm_name
from oelm.bench.ratios import FEWEST_ROUNDS, INTERVAL, ORDER, RULE, Step, interleave, ratio
from oelm.bench.steps import WARMUP, TimedArm, arm_of_run, build_arm
from oelm.errors import OelmError
from oelm.freezing.methods import method
from oelm.models.gpt import GPTConfig
from oelm.training.config import RunConfig, TrainingSection
from oelm.training.environment import allow_recompiling, environment, keep_freed_memory
from oelm.training.setup import open_data, parts_of, require_memory
from oelm.training.timing import PHASES, now

Say = Callable[[str, int, int], None]
"""What is being done, and how many of how many steps are."""
Seconds = dict[str, NDArray[np.float64]]
Product = tuple[int, int, int]
"""Of matrices: rows, columns, inner size."""
SQUARES = (512, 1024, 2048)
SECONDS_PER_SHAPE = 0.3
MINIMUM_REPEATS = 3


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
    rounds: int = 24,
    compiled: bool = False,
    device: torch.device | None = None,
    keep_freed: bool = True,
    memory: bool = False,
    say: Say = lambda what, done, total: None,
) -> dict[str, Any]:
    """Time the arms side by side; the reference is the first of them unless named. The result is plain JSON.

    `keep_freed` says whether freed memory stays in the process, as our trainer has it, or goes back at the C library's
    own discretion. `memory` also measures the peak of every arm, in a process of its own.
    """
    device = device or torch.device("cpu")
    names = list(dict.fromkeys(arm_name(name) for name in ([reference, *arms] if reference else arms)))
    if not names:
        raise OelmError("no arms to time; name methods ('oelm methods') or peers (gpt2, plain)")
    if rounds < FEWEST_ROUNDS:
        raise OelmError(f"{rounds} rounds decide nothing; use at least {FEWEST_ROUNDS}")
    if memory and device.type != "cpu":
        raise OelmError(f"--memory measures a CPU process, not {device}; use --device cpu, or leave --memory out")
    config = shape.model()
    tokens = shape.batch * config.max_seq_len
    multiplied = gemm_shapes(tokens, config.d_model, config.d_ff, config.vocab_size)
    say("measuring the matmul peak", 0, 0)
    before = gemm_speeds(multiplied, device)
    build = partial(build_arm, config=config, settings=shape.settings(), device=device, compiled=compiled)
    built, seconds, compared = _timed(names, build, rounds, device, compiled, keep_freed, say)
    say("measuring the matmul peak again", 0, 0)
    speeds = best_speeds(before, gemm_speeds(multiplied, device))
    peak = max(row["flops_per_second"] for row in speeds)
    result: dict[str, Any] = {
        "shape": {**asdict(shape), "length": config.max_seq_len},
        "protocol": {
            **protocol_of(rounds, device, compiled),
            "warmup_steps": WARMUP,
            "optimizer": "AdamW, gradients clipped at norm 1",
            "freed_memory": "kept" if keep_freed else "returned",
        },
        "environment": environment(str(device)),
        "gemm": {"peak_flops_per_second": peak, "shapes": speeds},
        "reference": names[0],
        "arms": {name: _facts(built[name], seconds[name], tokens, peak) | compared[name] for name in names},
    }
    result["arms"][names[0]]["verdict"] = "reference"
    if memory:
        from oelm.bench.memory import memory_of

        for name, facts in result["arms"].items():
            say(f"measuring the memory of {name}", 0, 0)
            facts["memory"] = memory_of(name, shape, keep_freed=keep_freed)
    return result


def compare_step_times(
    methods: Iterable[str], config: RunConfig, *, rounds: int, say: Say = lambda what, done, total: None
) -> dict[str, Any]:
    """Step-time ratios of methods to the baseline, beside the ratio that their FLOPs predict, for step_time.json.

    Every arm is the run of that method, on the same batches in every round. A method that trains other weights at other
    steps has no step time of its own and is left out.
    """
    reference, data = "baseline", open_data(Path(config.data.path))
    names = [name for name in dict.fromkeys([reference, *methods]) if not method(name).moves]
    alone = config.model_copy(update={"runtime": config.runtime.model_copy(update={"threads": None})})
    parts = {name: parts_of(alone.model_copy(update={"method": name}), data=data) for name in names}
    first, compiled = parts[reference], config.runtime.compile
    require_memory([part.sketch()[1] for part in parts.values()], first.device)
    try:
        _, seconds, compared = _timed(
            names, lambda name: arm_of_run(parts[name]), rounds, first.device, compiled, say=say
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise OelmError(f"{len(names)} models side by side do not fit into the memory of {first.device}") from None
    settings, tokens = first.config.training, first.objective.tokens_per_batch / first.config.training.batch_size
    return {
        "protocol": {
            **protocol_of(rounds, first.device, compiled, settings.precision),
            "batch": f"{settings.batch_size} × {tokens:.0f} tokens",
            "accumulation": settings.accumulation,
            "gradient_checkpointing": config.runtime.gradient_checkpointing,
        },
        "reference": reference,
        "reference_median_seconds": compared[reference]["median_seconds"],
        "arms": {name: facts for name, facts in compared.items() if name != reference},
        "seconds": {name: [float(value) for value in values] for name, values in seconds.items()},
    }


def _timed(
    names: Sequence[str],
    build: Callable[[str], TimedArm],
    rounds: int,
    device: torch.device,
    compiled: bool,
    keep_freed: bool = True,
    say: Say = lambda what, done, total: None,
) -> tuple[dict[str, TimedArm], Seconds, dict[str, dict[str, Any]]]:
    """The arms, built; their times, taken together; and where each stands beside the first, and by FLOPs should."""
    if device.type == "cpu" and keep_freed:
        keep_freed_memory()  # as the trainer does
    if compiled:
        allow_recompiling(len(names))  # all of them are versions of one model
    built = {}
    for name in names:
        say(f"building {name}", 0, 0)
        built[name] = build(name)
    steps = {name: _explained(name, arm.step) if compiled else arm.step for name, arm in built.items()}
    what = "compiling, then timing" if compiled else "timing"
    seconds = interleave(steps, rounds=rounds, warmup=WARMUP, watch=lambda done, total: say(what, done, total))
    base = built[names[0]].flops_per_token
    flops = {name: arm.flops_per_token / base if base else None for name, arm in built.items()}
    return built, seconds, {n: {**ratio(s, seconds[names[0]]), "predicted": flops[n]} for n, s in seconds.items()}


def protocol_of(rounds: int, device: torch.device, compiled: bool = False, precision: str = "fp32") -> dict[str, Any]:
    how = {"device": str(device), "threads": torch.get_num_threads(), "precision": precision, "compiled": compiled}
    return {"order": ORDER, "rounds": rounds, "interval": INTERVAL, "verdict": RULE, **how}


def _facts(arm: TimedArm, seconds: NDArray[np.float64], tokens: int, peak: float) -> dict[str, Any]:
    """What one arm does by itself."""
    flops, median = arm.flops_per_token * tokens, float(np.median(seconds))
    statistics, parameters = arm.timer.statistics(), list(arm.model.parameters())
    return {
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


def _explained(name: str, step: Step) -> Step:
    """torch.compile fails at the first step, with errors of many types; whoever asked for it needs one line."""

    def guarded(number: int) -> object:
        try:
            return step(number)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise OelmError(
                f"torch.compile could not run arm {name!r} ({type(error).__name__}: {reason}); leave --compile out"
            ) from error

    return guarded


def gemm_shapes(tokens: int, d_model: int, d_ff: int, vocab_size: int) -> list[Product]:
    """Squares, and the products that a model of this shape is made of: (rows, columns, inner)."""
    own = [(tokens, d_model, d_model), (tokens, d_ff, d_model), (tokens, d_model, d_ff), (tokens, vocab_size, d_model)]
    return [*((n, n, n) for n in SQUARES), *dict.fromkeys((min(m, 4096), min(n, 8192), k) for m, n, k in own)]


def gemm_speeds(shapes: Iterable[Product], device: torch.device) -> list[dict[str, Any]]:
    """FLOP/s of float32 products of every shape; of several repeats the fastest, which nothing disturbed."""
    found = []
    for rows, columns, inner in shapes:
        a, b = torch.randn(rows, inner, device=device), torch.randn(inner, columns, device=device)
        out = torch.mm(a, b)
        spent, fastest, repeats = 0.0, math.inf, 0
        while spent < SECONDS_PER_SHAPE or repeats < MINIMUM_REPEATS:
            start = now(device)
            torch.mm(a, b, out=out)
            taken = now(device) - start
            spent, fastest, repeats = spent + taken, min(fastest, taken), repeats + 1
        found.append({"shape": [rows, columns, inner], "flops_per_second": 2 * rows * columns * inner / fastest})
    return found


def best_speeds(*measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shape by shape the best of several measurements of the same shapes, e.g. before and after the steps."""
    return [max(rows, key=lambda row: row["flops_per_second"]) for rows in zip(*measurements, strict=True)]
