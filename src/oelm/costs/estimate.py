"""What a training step would cost on machines that we do not have. Parameters, FLOPs and memory are counted on our GPT
(`oelm.costs.inspection`); how they are spread over G devices, traffic and time are formulas:

- Memory: FSDP divides weights, gradients and optimizer by G, and holds one block's full weights twice (this one, and
  the next on its way). The allocator and the libraries come on top.
- Traffic of a device: DDP all-reduces the gradients of what trains: 2·(G−1)/G of their bytes. FSDP gathers all weights
  twice and scatters the gradients of what trains: (G−1)/G · (2 · weights + gradients).
- Time: FLOPs ÷ (peak · utilisation); AdamW reads and writes its bytes at the memory bandwidth; traffic at the link
  bandwidth, of which `overlap` hides behind the backward pass (two thirds of the computation) at most.
"""

import math
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from oelm.costs.memory import PRECISIONS
from oelm.errors import OelmError, unknown
from oelm.freezing.methods import method
from oelm.models.shape import ALL_SIZES
from oelm.validation import AT_LEAST_1, Limit, build, number_in, require_valid
from oelm.yaml_files import read_yaml

if TYPE_CHECKING:
    from oelm.costs.inspection import Costs

STRATEGIES = ("ddp", "fsdp")
ADAMW_PASSES = 7  # reads of weight, gradient and both moments; writes of weight and both moments
Rate = Annotated[float, Limit("that is finite and positive", lambda value: 0 < value < math.inf)]
SHARE = Limit("of at least 0 and at most 1: it is a share", lambda value: 0 <= value <= 1)
POSITIVE_SHARE = Limit("above 0 and at most 1: it is a share", lambda value: 0 < value <= 1)


@dataclass(frozen=True)
class Machine:
    """One device and its link. Rates per second; the defaults are a data-sheet A100 with 80 GB."""

    name: str = "a100-80gb"
    peak_flops: Rate = 312e12
    utilisation: Annotated[float, POSITIVE_SHARE] = 0.4  # share of the peak that a training step reaches in practice
    memory_bytes: Rate = 80e9
    memory_bandwidth: Rate = 2.0e12
    link_bandwidth: Rate = 25e9  # bytes per second and direction, of the slowest link that a ring passes through
    overlap: Annotated[float, SHARE] = 1.0  # share of the backward pass behind which communication can hide

    def __post_init__(self) -> None:
        require_valid(self, "machine: ")


_TABLE: dict[str, Any] = read_yaml(Path(__file__).with_name("machines.yaml"), "table")
MACHINES = {name: Machine(name, **row) for name, row in _TABLE.items()}


@dataclass(frozen=True)
class Job:
    """What is to be trained, and how it is spread."""

    size: str
    method: str = "baseline"
    gpus: Annotated[int, AT_LEAST_1] = 1
    strategy: str = "ddp"
    batch: Annotated[int, AT_LEAST_1] = 8
    length: int | None = None
    precision: str = "mixed"
    gradient_checkpointing: bool = False
    vocab: int | None = None

    def check(self) -> None:
        choices = {"size": tuple(ALL_SIZES), "strategy": STRATEGIES, "precision": ("mixed", "fp32")}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        require_valid(self)
        chosen = method(self.method)
        if chosen.moves:
            raise OelmError(
                f"method {chosen.name!r} trains other weights at other steps, so no single step is typical of it; "
                "estimate what it changes between, e.g. oelm_freeze and baseline"
            )


@cache
def _costs(job: Job) -> "Costs":
    """What one device computes and holds, before any of it is spread."""
    from oelm.costs.inspection import costs_of  # with torch, once the job is known to be one

    shape = ALL_SIZES[job.size]
    longest = max(shape.max_seq_len, job.length or 0)
    return costs_of(
        replace(shape, vocab_size=job.vocab or shape.vocab_size, max_seq_len=longest, dropout=0.0),
        job.method,
        sequence_length=job.length,
        batch_size=job.batch,
        precision=job.precision,
        accumulates=job.gpus > 1,
        gradient_checkpointing=job.gradient_checkpointing,
        cpu=False,
    )


def read_machine(name: str, changes: dict[str, Any]) -> Machine:
    """A machine by name, or from a YAML file with its fields, with any field replaced."""
    if name not in MACHINES and not Path(name).exists():
        raise OelmError(f"machine {name!r} is no file and unknown; known: {', '.join(MACHINES)}")
    values = asdict(MACHINES[name]) if name in MACHINES else read_yaml(Path(name), "machine")
    if not isinstance(values, dict):
        raise OelmError(f"machine {name} holds {type(values).__name__}; it must be a mapping, e.g. peak_flops: 3e+14")
    values = {"name": name} | values | changes
    numbers = {key: number_in(value) for key, value in values.items() if key != "name"}
    return build(Machine, {"name": values["name"], **numbers}, f"machine {name}")


def estimate(job: Job, machine: Machine) -> dict[str, Any]:
    """One training step of the job, and the same under `baseline`: what freezing saves."""
    job.check()
    own, base = _one(job, machine), _one(replace(job, method="baseline"), machine)
    saved = {
        "step_flops": 1 - own["flops_per_gpu"] / base["flops_per_gpu"],
        "memory_bytes": base["memory"]["total"] - own["memory"]["total"],
        "traffic_bytes": base["traffic_bytes"] - own["traffic_bytes"],
        "step_seconds": 1 - own["step_seconds"] / base["step_seconds"],
    }
    return {"job": asdict(job), "machine": asdict(machine), **own, "freezing_saves": saved}


def _one(job: Job, machine: Machine) -> dict[str, Any]:
    costs = _costs(replace(job, strategy=STRATEGIES[0]))  # the same for both
    memory, traffic = _memory(job, costs), _traffic(job, costs)
    seconds = _seconds(job, machine, costs, traffic)
    tokens = job.batch * costs.sequence_length * job.gpus
    return {
        "parameters": costs.total_parameters,
        "frozen_parameters": costs.frozen_parameters,
        "tokens_per_step": tokens,
        "flops_per_gpu": costs.step_flops,
        "memory": memory,
        "fits": memory["total"] <= machine.memory_bytes,
        "traffic_bytes": traffic,
        "seconds": seconds,
        "step_seconds": seconds["step"],
        "tokens_per_second": tokens / seconds["step"],
    }


def _memory(job: Job, costs: "Costs") -> dict[str, int]:
    """What a device holds at the highest moment of a step; FSDP shares weights, gradients and optimizer."""
    held = costs.memory
    assert held is not None  # our GPT has a formula
    parts = {
        "weights": held.weights,
        "gradients": held.gradients if job.gpus > 1 else 0,  # alone, they come as activations go
        "optimizer": held.optimizer,
    }
    if job.strategy == "fsdp":
        parts = {name: -(-value // job.gpus) for name, value in parts.items()}
        parts["gathered_blocks"] = 2 * PRECISIONS[job.precision].weight * costs.block_parameters
    parts["activations"] = held.highest_bytes
    return {**parts, "total": sum(parts.values())}


def _traffic(job: Job, costs: "Costs") -> int:
    """Bytes that one device sends per step."""
    trainable, each = costs.trainable_parameters, PRECISIONS[job.precision].gradient
    share = (job.gpus - 1) / job.gpus
    moved = 2 * trainable if job.strategy == "ddp" else 2 * costs.total_parameters + trainable
    return round(share * each * moved)


def _seconds(job: Job, machine: Machine, costs: "Costs", traffic: int) -> dict[str, float]:
    computing = costs.step_flops / (machine.peak_flops * machine.utilisation)
    own = costs.trainable_parameters / (job.gpus if job.strategy == "fsdp" else 1)
    updating = ADAMW_PASSES * 4 * own / machine.memory_bandwidth
    talking = traffic / machine.link_bandwidth
    hidden = min(talking, machine.overlap * computing * 2 / 3)
    return {
        "computing": computing,
        "optimizer": updating,
        "communication": talking,
        "communication_not_hidden": talking - hidden,
        "step": computing + updating + talking - hidden,
    }
