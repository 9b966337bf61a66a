"""What a training step would cost on machines that we do not have: FLOPs, memory, traffic, time. Pure arithmetic.

The formulas, for P parameters of which P_t train, on G devices with B sequences of T tokens each per step:

- FLOPs of a device: B·T · (2 forward + 2 for the gradient of inputs + 2 for weights that train) per matmul weight, plus
  attention; gradient checkpointing adds one forward pass of the blocks. See `oelm.costs.flops`.
- Memory of a device: weights, gradients and two AdamW moments, in `mixed` precision 2 bytes per weight and gradient
  and 12 (weight copy and moments, float32) per weight that trains; in `fp32` 4 + 4 + 8. FSDP divides all of it by G and
  holds one block's full weights twice (this one, and the next on its way). Activations as in `oelm.costs.memory`,
  without dropout's tables, scaled to the bytes of an activation. The allocator and the libraries come on top.
- Traffic of a device: DDP all-reduces the gradients of what trains: 2·(G−1)/G of their bytes. FSDP gathers all weights
  twice and scatters the gradients of what trains: (G−1)/G · (2 · weights + gradients).
- Time: FLOPs ÷ (peak · utilisation); AdamW reads and writes its bytes at the memory bandwidth; traffic at the link
  bandwidth, of which `overlap` hides behind the backward pass (two thirds of the computation) at most.

Freezing a matrix saves its weight gradient (FLOPs), gradient and moments (memory) and traffic, nothing else. A
projection without weights saves the matrix itself; learned adapters come on top, but for their activations.
"""

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from oelm.costs.flops import Flops, Matmul, attention_flops, count
from oelm.costs.memory import Shape as MemoryShape
from oelm.costs.memory import attention_table, kept_by_block
from oelm.errors import OelmError, unknown
from oelm.freezing.methods import method
from oelm.freezing.spec import Adapters, Part, layer_numbers
from oelm.validation import Limit, plain_number, require_valid

Rate = Annotated[float, Limit("that is finite and positive", lambda value: 0 < value < math.inf)]
SHARE = Limit("of at least 0 and at most 1: it is a share", lambda value: 0 <= value <= 1)
POSITIVE_SHARE = Limit("above 0 and at most 1: it is a share", lambda value: 0 < value <= 1)
STRATEGIES = ("ddp", "fsdp")
PRECISIONS = ("mixed", "fp32")
ADAMW_PASSES = 7
"""Reads of weight, gradient and both moments; writes of weight and both moments."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder with tied embeddings and learned positions, like our GPT."""

    d_model: int
    num_layers: int
    num_heads: int
    max_seq_len: int
    vocab_size: int = 50_257
    d_ff: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.d_ff:
            object.__setattr__(self, "d_ff", 4 * self.d_model)

    @property
    def block_parameters(self) -> int:
        d, wide = self.d_model, self.d_ff
        return 4 * d * d + 2 * d * wide + wide + d + 4 * d  # projections, wide layer with biases, two norms

    @property
    def parameters(self) -> int:
        d = self.d_model
        return (self.vocab_size + self.max_seq_len) * d + self.num_layers * self.block_parameters + 2 * d


SIZES: dict[str, ModelShape] = {
    "demo": ModelShape(64, 2, 4, 256),
    "tiny": ModelShape(256, 4, 4, 512),
    "small": ModelShape(384, 6, 6, 512),
    "medium-512": ModelShape(512, 6, 8, 512),
    "medium": ModelShape(768, 12, 12, 1024),
    "large": ModelShape(1024, 24, 16, 1024),
    "1b": ModelShape(2048, 24, 16, 2048),
    "3b": ModelShape(2560, 32, 32, 2048),
    "7b": ModelShape(4096, 32, 32, 2048),
    "13b": ModelShape(5120, 40, 40, 2048),
    "70b": ModelShape(8192, 80, 64, 4096),
}
"""Our own sizes (a test compares them with `oelm.models.gpt`), and the usual widths and depths of larger decoders."""


@dataclass(frozen=True)
class Machine:
    """One device and its link. Rates per second; the defaults are a data-sheet A100 with 80 GB."""

    name: str = "a100-80gb"
    peak_flops: Rate = 312e12
    utilisation: Annotated[float, POSITIVE_SHARE] = 0.4
    """Share of the peak that a training step reaches in practice."""
    memory_bytes: Rate = 80e9
    memory_bandwidth: Rate = 2.0e12
    link_bandwidth: Rate = 25e9
    """Bytes per second and direction between the slowest pair of devices that a ring passes through."""
    overlap: Annotated[float, SHARE] = 1.0
    """Share of the backward pass behind which communication can hide."""

    def __post_init__(self) -> None:
        require_valid(self, "machine: ")


MACHINES: dict[str, Machine] = {
    "a100-80gb": Machine(),
    "h100-80gb": Machine("h100-80gb", peak_flops=989e12, memory_bandwidth=3.35e12, link_bandwidth=50e9),
    "cpu-core": Machine(
        "cpu-core", 90e9, utilisation=0.75, memory_bytes=8e9, memory_bandwidth=8e9, link_bandwidth=1e9, overlap=0.0
    ),
}


@dataclass(frozen=True)
class Job:
    """What is to be trained, and how it is spread."""

    size: str
    method: str = "baseline"
    gpus: int = 1
    strategy: str = "ddp"
    batch: int = 8
    length: int | None = None
    precision: str = "mixed"
    gradient_checkpointing: bool = False
    vocab: int | None = None

    def shape(self) -> ModelShape:
        shape = SIZES[self.size]
        return replace(
            shape, vocab_size=self.vocab or shape.vocab_size, max_seq_len=max(shape.max_seq_len, self.length or 0)
        )

    def check(self) -> None:
        if self.size not in SIZES:
            raise unknown("size", self.size, SIZES)
        if self.strategy not in STRATEGIES:
            raise unknown("strategy", self.strategy, STRATEGIES)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        for name in ("gpus", "batch"):
            if getattr(self, name) < 1:
                raise OelmError(f"{name} is {getattr(self, name)}; it must be at least 1")
        chosen = method(self.method)
        if chosen.moves:
            raise OelmError(
                f"method {chosen.name!r} trains other weights at other steps, so no single step is typical of it; "
                "estimate what it changes between, e.g. oelm_freeze and baseline"
            )
        if chosen.ratio is not None:
            raise OelmError(
                f"method {chosen.name!r} freezes matrices up to a share, which are chosen in a built model; "
                "see 'oelm inspect', or name the layers (oelm_freeze+layers=last2)"
            )
        if chosen.architecture:
            raise OelmError(
                f"method {chosen.name!r} changes the architecture ({', '.join(chosen.architecture)}), which is counted "
                "in a built model; see 'oelm inspect'"
            )
        shape = SIZES[self.size]
        for part in (chosen.query, chosen.key):
            part.require_shape(shape.d_model, shape.d_model, shape.num_heads)


def read_machine(name: str, changes: dict[str, Any]) -> Machine:
    """A machine by name, or from a YAML file with its fields, with any field replaced."""
    if name in MACHINES:
        return _machine(asdict(MACHINES[name]) | changes, name)
    from oelm.yaml_files import read_yaml

    if not Path(name).exists():
        raise OelmError(f"machine {name!r} is no file and unknown; known: {', '.join(MACHINES)}")
    values = read_yaml(Path(name), "machine")
    if not isinstance(values, dict):
        raise OelmError(
            f"machine {name} holds {type(values).__name__}; it must be a mapping, e.g. peak_flops: 3.12e+14"
        )
    return _machine({"name": name} | values | changes, name)


def _machine(values: dict[str, Any], where: str) -> Machine:
    known = [field.name for field in fields(Machine)]
    for key in values:
        if key not in known:
            raise unknown(f"setting of machine {where}", str(key), known)
    return Machine(**{key: _number(value) if key != "name" else value for key, value in values.items()})


def _number(value: Any) -> Any:
    """YAML reads 3.12e14 (no sign) as text; people mean the number."""
    number = plain_number(value) if isinstance(value, str) else None
    return value if number is None else number


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
    shape, length = job.shape(), job.length or job.shape().max_seq_len
    parameters, frozen = all_parameters(shape, job.method), frozen_parameters(shape, job.method)
    trainable = parameters - frozen
    flops = job.batch * length * _flops_per_token(shape, job, length)
    memory = _memory(job, shape, parameters, trainable, length)
    traffic = _traffic(job, parameters, trainable)
    seconds = _seconds(job, machine, flops, trainable, traffic)
    tokens = job.batch * length * job.gpus
    return {
        "parameters": parameters,
        "frozen_parameters": frozen,
        "tokens_per_step": tokens,
        "flops_per_gpu": flops,
        "memory": memory,
        "fits": memory["total"] <= machine.memory_bytes,
        "traffic_bytes": traffic,
        "seconds": seconds,
        "step_seconds": seconds["step"],
        "tokens_per_second": tokens / seconds["step"],
    }


@dataclass(frozen=True)
class _Site:
    """The queries, keys or FFN matrices of one block: what a method does to them, and their entries."""

    role: str
    part: Part
    weights: int


def _sites(shape: ModelShape, method_name: str) -> list[_Site]:
    chosen, d = method(method_name), shape.d_model
    treated = layer_numbers(chosen.layers, shape.num_layers)
    weights = {"query": d * d, "key": d * d, "ffn": 2 * d * shape.d_ff}
    return [
        _Site(role, chosen.part(role) if layer in treated else Part(), count)
        for layer in range(shape.num_layers)
        for role, count in weights.items()
    ]


def all_parameters(shape: ModelShape, method_name: str) -> int:
    """The model's, without the matrices of projections that have none, with the learned adapters."""
    sites = _sites(shape, method_name)
    gone = sum(site.weights for site in sites if site.part.projection != "dense")
    return shape.parameters - gone + sum(sum(_pieces(shape, site.part.adapters)) for site in sites)


def frozen_parameters(shape: ModelShape, method_name: str) -> int:
    return sum(site.weights for site in _sites(shape, method_name) if site.part.freezes_weights)


def _pieces(shape: ModelShape, adapters: Adapters) -> tuple[int, int]:
    """Learned numbers on top of one projection: in matrices, and in vectors, which are no products."""
    d, heads = shape.d_model, shape.num_heads
    return 2 * adapters.rank * d + adapters.mix * d * d // heads, (
        adapters.shift + adapters.gain
    ) * d + adapters.scale * heads


def _flops_per_token(shape: ModelShape, job: Job, length: int) -> int:
    flops = block_flops(shape, job.method, length)
    again = sum(n for group, n in flops.forward.items() if group != "head") if job.gradient_checkpointing else 0
    return flops.step + again


def block_flops(shape: ModelShape, method_name: str, length: int) -> Flops:
    """As `oelm inspect` counts them, without a model."""
    d, layers = shape.d_model, shape.num_layers
    matmuls = [Matmul("vo", layers * 2 * d * d), Matmul("head", shape.vocab_size * d)]
    for site in _sites(shape, method_name):
        group, (extra, _) = "ffn" if site.role == "ffn" else "qk", _pieces(shape, site.part.adapters)
        matmuls += [Matmul(group, site.weights, not site.part.frozen)] if site.part.projection == "dense" else []
        matmuls += [Matmul(group, extra)] if extra else []
    return count(matmuls, layers * attention_flops(d, length, causal=True))


def _memory(job: Job, shape: ModelShape, parameters: int, trainable: int, length: int) -> dict[str, int]:
    mixed = job.precision == "mixed"
    weight, gradient, optimizer = (2, 2, 12) if mixed else (4, 4, 8)
    parts = {
        "weights": weight * parameters,
        "gradients": gradient * trainable,
        "optimizer": optimizer * trainable,
    }
    if job.strategy == "fsdp":
        parts = {name: -(-value // job.gpus) for name, value in parts.items()}
        block = shape.block_parameters + (parameters - shape.parameters) // shape.num_layers
        parts["gathered_blocks"] = 2 * weight * block
    parts["activations"] = _activations(job, shape, length)
    return {**parts, "total": sum(parts.values())}


def _activations(job: Job, shape: MemoryShape, length: int) -> int:
    """As torch's fused attention keeps them; bfloat16 halves all of it but the attention's own statistics."""
    half = 2 if job.precision == "mixed" else 1
    table = attention_table(shape, job.batch, length, cpu=False)
    block = (kept_by_block(shape, job.batch, length, cpu=False) - table) // half + table
    unit = 4 * job.batch * length * shape.d_model // half
    kept = shape.num_layers * unit + block if job.gradient_checkpointing else shape.num_layers * block
    return kept + 3 * unit


def _traffic(job: Job, parameters: int, trainable: int) -> int:
    """Bytes that one device sends per step."""
    each = 2 if job.precision == "mixed" else 4
    share = (job.gpus - 1) / job.gpus
    moved = 2 * trainable if job.strategy == "ddp" else 2 * parameters + trainable
    return round(share * each * moved)


def _seconds(job: Job, machine: Machine, flops: int, trainable: int, traffic: int) -> dict[str, float]:
    computing = flops / (machine.peak_flops * machine.utilisation)
    own = trainable / job.gpus if job.strategy == "fsdp" else trainable
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
