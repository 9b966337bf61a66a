"""`oelm methods`, `inspect` and `estimate`: what there is, and what it amounts to, before anything is trained."""

import json
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from typer import Argument, Option

from oelm.cli.console import AsJson, command_console, echo_json
from oelm.freezing.methods import method as find_method
from oelm.freezing.methods import methods as all_methods
from oelm.freezing.modifiers import MODIFIERS


def methods(as_json: AsJson = False) -> None:
    """List the methods: how queries and keys start, and whether they train."""
    if as_json:
        return echo_json([m.to_dict() for m in all_methods()])
    table = Table("method", "what it is, and what happens to queries (Q) and keys (K)", box=None)
    for m in all_methods():
        roles = "; ".join(
            f"{role}: {part.init if part.projection == 'dense' else part.projection}, "
            f"{'frozen' if part.frozen else 'trained'}"
            for role, part in (("Q", m.query), ("K", m.key), ("FFN", m.ffn))
            if role != "FFN" or part.frozen
        )
        alias = f"\n({', '.join(m.aliases)})" if m.aliases else ""
        table.add_row(f"[bold]{m.name}[/]{alias}", f"{m.summary}\n[dim]{roles}[/]")
    console = command_console()
    console.print(table)
    console.print("\nAny of them can be varied in one word, e.g. [bold]oelm_freeze+rank=8+layers=not-last2[/]:")
    words = Table("modifier", "what it does", box=None)
    for name, (value, _, summary) in MODIFIERS.items():
        words.add_row(f"[bold]+{name.rstrip('=')}[/]" + (f"={value}" if value else ""), summary)
    console.print(words)


def inspect(
    model: Annotated[str, Argument(help="A size (medium-512, …), a published model (bert-base, …), a run or folder.")],
    method: Annotated[
        str | None, Option("--method", "--model_type", help="Of 'oelm methods'. (default: baseline; a run's own)")
    ] = None,
    labels: Annotated[int | None, Option(min=1, help="As a classifier with this many classes.")] = None,
    sequence_length: Annotated[int | None, Option(min=1, help="Tokens per sequence, for FLOPs.")] = None,
    vocab_size: Annotated[int | None, Option(help="Vocabulary. (default: GPT-2's 50,257)")] = None,
    positions: Annotated[str | None, Option(help="learned or rotary.")] = None,
    dropout: Annotated[float | None, Option(help="Changes what training keeps. (default: the size's)")] = None,
    batch_size: Annotated[int, Option(min=1, help="Sequences per step, for memory.")] = 8,
    checkpointing: Annotated[bool, Option("--gradient-checkpointing", help="Compute the blocks twice.")] = False,
    max_steps: Annotated[int, Option(min=1, help="Steps of a run, for methods that change on the way.")] = 100_000,
    as_json: AsJson = False,
) -> None:
    """Count parameters, checkpoint bytes, matmul FLOPs and memory of a model under a method, without allocating it.

    Memory is the peak of a float32 training step of our GPT on a CPU, beyond what Python and its libraries take (about
    0.3 GB): weights, gradients, AdamW's moments, what the backward pass keeps, the loss (docs/speed.md).
    """
    from oelm.models.known import require_known

    find_method(method or "baseline")  # what is misspelt is refused before torch is loaded
    require_known(model)
    from oelm.costs.inspection import inspect_model

    shape, own = _of_run(model)
    given = {"vocab_size": vocab_size, "positions": positions, "dropout": dropout}
    how: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    how |= {"labels": labels, "sequence_length": sequence_length, "batch_size": batch_size, "max_steps": max_steps}
    facts = inspect_model(shape, method or own, gradient_checkpointing=checkpointing, **how) | {"model": model}
    (echo_json if as_json else _print)(facts)


def _of_run(given: str) -> tuple[Any, Any]:
    """What to inspect, and by which method: of a run, or of a checkpoint in one, its own."""
    from oelm.runs import RunFolder

    path = Path(given)
    runs = [run for folder in (path, path.parent.parent) if (run := RunFolder(folder)).config_file.is_file()]
    if not runs:
        return given, "baseline"
    from oelm.models.shape import GPTConfig
    from oelm.training import checkpoints
    from oelm.training.config import RunConfig

    config, weights = RunConfig.load(runs[0].config_file), checkpoints.resolve(path).path
    if config.model.name:
        return str(weights), config.method
    vocabulary = json.loads((weights / "config.json").read_text())["vocab_size"]
    shape = GPTConfig.of_size(config.model.size, **{"vocab_size": vocabulary, **config.model.overrides})
    return shape, config.method  # which gives the shape its architecture


def _print(facts: dict[str, Any]) -> None:
    from oelm.freezing.schedules import LEGEND

    console = command_console()
    console.print(f"[bold]{facts['model']}[/] with [bold]{facts['method']}[/]")
    free = facts["projections_without_weights"]
    note = f"; {free} projections have no weights" if free else ""
    for label, kind, more in (("total", "total", ""), ("frozen", "frozen", note), ("train", "trainable", "")):
        console.print(f"  {label:<10} {facts[f'{kind}_parameters']:>16,} parameters{more}")
    console.print(f"  {'checkpoint':<10} {facts['checkpoint_bytes']:>16,} bytes (weights + two moments of what trains)")
    if "training_memory" in facts:
        memory = facts["training_memory"]
        names = ("weights", "optimizer", "gradients", "activations", "loss_chunks")
        parts = ", ".join(f"{name.replace('_', ' ')} {memory[name] / 1e6:,.0f}" for name in names)
        step = f"{memory['batch_size']} × {memory['sequence_length']} tokens (CPU, {memory['precision']})"
        console.print(f"  {'memory':<10} {memory['peak_bytes']:>16,} bytes at the peak of a step of {step}")
        console.print(f"  {'of that, MB':<10} {parts} (not all at once)")
    table = Table("MFLOPs per token", "forward", "backward", title_justify="left")
    flops = facts["flops_per_token"]
    for group in flops["forward"]:
        table.add_row(group, f"{flops['forward'][group] / 1e6:,.2f}", f"{flops['backward'][group] / 1e6:,.2f}")
    console.print(table)
    step, blocks = (_saved(facts[f"{part}_flops_vs_baseline"]) for part in ("step", "block"))
    console.print(
        f"  a training step computes {step} matmul FLOPs than the baseline's; blocks' matrices alone, {blocks}"
    )
    if facts["adapters_parameters"]:
        console.print(f"  learned adapters: {facts['adapters_parameters']:,} parameters")
    console.print("\n  [bold]over a run[/], from its first step to its last")
    width = max((len(row["what"]) for row in facts["training"]), default=0)
    for row in facts["training"]:
        console.print(f"  {row['what']:<{width}}  {row['when']}")
    console.print(f"  [dim]{LEGEND}[/]")


def _saved(ratio: float) -> str:
    percent = 100 * (1 - ratio)
    return f"{percent:.1f} % fewer" if percent >= 0 else f"{-percent:.1f} % more"


def estimate(
    size: Annotated[str, Option(help="tiny … large, 1b, 3b, 7b, 13b or 70b.")] = "7b",
    method: Annotated[str, Option(help="A name from 'oelm methods'.")] = "oelm_freeze",
    gpus: Annotated[int, Option(min=1, help="Devices that share the work.")] = 64,
    strategy: Annotated[str | None, Option(help="ddp or fsdp. (default: both)")] = None,
    batch: Annotated[int, Option(min=1, help="Sequences per device and step.")] = 4,
    length: Annotated[int | None, Option(min=1, help="Tokens per sequence. (default: the size's own)")] = None,
    vocab: Annotated[int | None, Option(min=2, help="Vocabulary. (default: 50,257)")] = None,
    precision: Annotated[str, Option(help="mixed (bfloat16 with float32 copies) or fp32.")] = "mixed",
    checkpointing: Annotated[bool, Option("--gradient-checkpointing", help="Compute the blocks twice.")] = False,
    machine: Annotated[str, Option(help="a100-80gb, h100-80gb, cpu-core, or a YAML file.")] = "a100-80gb",
    peak: Annotated[float | None, Option("--peak-flops", help="FLOP/s of a device.")] = None,
    utilisation: Annotated[float | None, Option(help="Share of the peak that training reaches.")] = None,
    memory: Annotated[float | None, Option("--memory-bytes", help="Memory of a device.")] = None,
    memory_bandwidth: Annotated[float | None, Option(help="Bytes per second, device memory.")] = None,
    link_bandwidth: Annotated[float | None, Option(help="Bytes per second between devices.")] = None,
    overlap: Annotated[float | None, Option(help="Share of the backward pass that hides traffic.")] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate FLOPs, memory, traffic and time of a training step, and what freezing saves, by documented formulas.

    Nothing is allocated and nothing is run. A machine file has the fields peak_flops, utilisation, memory_bytes,
    memory_bandwidth, link_bandwidth and overlap.
    The formulas are in the docstring of oelm/costs/estimate.py, their measured error in docs/speed.md.

    Example: oelm estimate --size 7b --gpus 64 --method oelm_freeze --gradient-checkpointing
    """
    from oelm.costs.estimate import STRATEGIES, Job, read_machine
    from oelm.costs.estimate import estimate as compute

    given = {"peak_flops": peak, "utilisation": utilisation, "memory_bytes": memory, "overlap": overlap}
    given |= {"memory_bandwidth": memory_bandwidth, "link_bandwidth": link_bandwidth}
    device = read_machine(machine, {name: value for name, value in given.items() if value is not None})
    results = [
        compute(Job(size, method, gpus, name, batch, length, precision, checkpointing, vocab), device)
        for name in ([strategy] if strategy else STRATEGIES)
    ]
    (echo_json if as_json else _print_estimate)(results)


def _print_estimate(results: list[dict[str, Any]]) -> None:
    console, first = command_console(), results[0]
    job, device = first["job"], first["machine"]
    console.print(
        f"[bold]{job['size']}[/] with [bold]{job['method']}[/]: {first['parameters'] / 1e9:.2f} billion parameters, "
        f"{100 * first['frozen_parameters'] / first['parameters']:.1f} % frozen; {job['gpus']} × {device['name']}, "
        f"{first['tokens_per_step']:,} tokens per step, {job['precision']}"
    )
    table = Table("per device and step", *(result["job"]["strategy"] for result in results), box=None)
    for label, cell in _ESTIMATED.items():
        table.add_row(label, *(cell(result) for result in results))
    console.print(table)
    console.print(
        f"computing at {100 * device['utilisation']:.0f} % of {device['peak_flops'] / 1e12:,.4g} TFLOP/s; "
        "an estimate: docs/speed.md says how wrong it was where it could be measured",
        style="dim",
    )


_KEPT = ("weights", "gradients", "optimizer")
_ESTIMATED = {
    "TFLOPs": lambda r: f"{r['flops_per_gpu'] / 1e12:,.2f}",
    "memory, GB": lambda r: f"{r['memory']['total'] / 1e9:,.2f}{'' if r['fits'] else ' (does not fit)'}",
    "  weights, gradients, optimizer": lambda r: f"{sum(r['memory'][part] for part in _KEPT) / 1e9:,.2f}",
    "  activations": lambda r: f"{r['memory']['activations'] / 1e9:,.2f}",
    "traffic sent, GB": lambda r: f"{r['traffic_bytes'] / 1e9:,.3f}",
    "step, ms": lambda r: f"{1e3 * r['step_seconds']:,.1f}",
    "  computing": lambda r: f"{1e3 * r['seconds']['computing']:,.1f}",
    "  optimizer": lambda r: f"{1e3 * r['seconds']['optimizer']:,.1f}",
    "  waiting for traffic": lambda r: f"{1e3 * r['seconds']['communication_not_hidden']:,.1f}",
    "tokens per second, all devices": lambda r: f"{r['tokens_per_second']:,.0f}",
    "freezing saves: FLOPs": lambda r: f"{100 * r['freezing_saves']['step_flops']:.2f} %",
    "freezing saves: time": lambda r: f"{100 * r['freezing_saves']['step_seconds']:.2f} %",
    "freezing saves: memory, GB": lambda r: f"{r['freezing_saves']['memory_bytes'] / 1e9:,.3f}",
    "freezing saves: traffic, GB": lambda r: f"{r['freezing_saves']['traffic_bytes'] / 1e9:,.3f}",
}
