"""`oelm methods` and `oelm inspect`: what there is, and what it amounts to, before anything is trained."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from oelm.cli.console import command_console
from oelm.freezing.methods import method as find_method
from oelm.freezing.methods import methods as all_methods
from oelm.freezing.modifiers import MODIFIERS


def methods(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """List the methods: how queries and keys start, and whether they train."""
    if as_json:
        typer.echo(json.dumps([m.to_dict() for m in all_methods()], indent=2))
        return
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
    model: Annotated[str, typer.Argument(help="A size (medium-512, …), a published model (bert-base, …) or a folder.")],
    method: Annotated[str, typer.Option("--method", "--model_type", help="A name from 'oelm methods'.")] = "baseline",
    labels: Annotated[int | None, typer.Option(min=1, help="As a classifier with this many classes.")] = None,
    sequence_length: Annotated[int | None, typer.Option(min=1, help="Tokens per sequence, for FLOPs.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Vocabulary. (default: GPT-2's 50,257)")] = None,
    positions: Annotated[str | None, typer.Option(help="learned or rotary.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Changes what training keeps. (default: the size's)")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Sequences per step, for memory.")] = 8,
    checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Memory of a step that computes its blocks twice.")
    ] = False,
    max_steps: Annotated[
        int, typer.Option("--max-steps", min=1, help="Steps of a run, for methods that change on the way.")
    ] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Count parameters, checkpoint bytes, matmul FLOPs and memory of a model under a method, without allocating it.

    Memory is the peak of a float32 training step of our GPT on a CPU, beyond what Python and its libraries take (about
    0.3 GB): weights, gradients, AdamW's moments, what the backward pass keeps, the loss (docs/speed.md).
    """
    from oelm.models.known import require_known

    find_method(method)  # what is misspelt is refused before torch is loaded
    require_known(model)
    from oelm.costs.inspection import inspect_model

    given = {"vocab_size": vocab_size, "positions": positions, "dropout": dropout}
    facts = inspect_model(
        model,
        method,
        labels=labels,
        sequence_length=sequence_length,
        batch_size=batch_size,
        gradient_checkpointing=checkpointing,
        max_steps=max_steps,
        **{name: value for name, value in given.items() if value is not None},
    )
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


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
    saved = f"a training step computes {step} matmul FLOPs than the baseline's; the blocks' matrices alone, {blocks}"
    console.print(f"  {saved}")
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
