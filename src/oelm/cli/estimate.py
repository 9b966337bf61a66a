"""`oelm estimate`: what a training step would cost on machines that we do not have, and what freezing saves there."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from oelm.cli.console import command_console


def estimate(
    size: Annotated[str, typer.Option(help="tiny … large, 1b, 3b, 7b, 13b or 70b.")] = "7b",
    method: Annotated[str, typer.Option(help="A name from 'oelm methods'.")] = "oelm_freeze",
    gpus: Annotated[int, typer.Option(min=1, help="Devices that share the work.")] = 64,
    strategy: Annotated[str | None, typer.Option(help="ddp or fsdp. (default: both)")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per device and step.")] = 4,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens per sequence. (default: the size's own)")] = None,
    vocab: Annotated[int | None, typer.Option(min=2, help="Vocabulary. (default: 50,257)")] = None,
    precision: Annotated[str, typer.Option(help="mixed (bfloat16 with float32 copies) or fp32.")] = "mixed",
    checkpointing: Annotated[bool, typer.Option("--gradient-checkpointing", help="Compute the blocks twice.")] = False,
    machine: Annotated[str, typer.Option(help="a100-80gb, h100-80gb, cpu-core, or a YAML file.")] = "a100-80gb",
    peak: Annotated[float | None, typer.Option("--peak-flops", help="FLOP/s of a device.")] = None,
    utilisation: Annotated[float | None, typer.Option(help="Share of the peak that training reaches.")] = None,
    memory: Annotated[float | None, typer.Option("--memory-bytes", help="Memory of a device.")] = None,
    memory_bandwidth: Annotated[float | None, typer.Option(help="Bytes per second, device memory.")] = None,
    link_bandwidth: Annotated[float | None, typer.Option(help="Bytes per second between devices.")] = None,
    overlap: Annotated[float | None, typer.Option(help="Share of the backward pass that hides traffic.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
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
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        _print(results)


def _print(results: list[dict[str, Any]]) -> None:
    console, first = command_console(), results[0]
    job, device = first["job"], first["machine"]
    console.print(
        f"[bold]{job['size']}[/] with [bold]{job['method']}[/]: {first['parameters'] / 1e9:.2f} billion parameters, "
        f"{100 * first['frozen_parameters'] / first['parameters']:.1f} % frozen; {job['gpus']} × {device['name']}, "
        f"{first['tokens_per_step']:,} tokens per step, {job['precision']}"
    )
    table = Table("per device and step", *(result["job"]["strategy"] for result in results), box=None)
    for label, cell in _ROWS.items():
        table.add_row(label, *(cell(result) for result in results))
    console.print(table)
    console.print(
        f"computing at {100 * device['utilisation']:.0f} % of {device['peak_flops'] / 1e12:,.4g} TFLOP/s; "
        "an estimate: docs/speed.md says how wrong it was where it could be measured",
        style="dim",
    )


_ROWS = {
    "TFLOPs": lambda r: f"{r['flops_per_gpu'] / 1e12:,.2f}",
    "memory, GB": lambda r: f"{r['memory']['total'] / 1e9:,.2f}{'' if r['fits'] else ' (does not fit)'}",
    "  weights, gradients, optimizer": lambda r: (
        f"{sum(r['memory'][part] for part in ('weights', 'gradients', 'optimizer')) / 1e9:,.2f}"
    ),
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
