"""`oelm recommend`: which method to use for a model, from measured runs, with the evidence and its limits."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from oelm.analysis.recommend import Advice


def recommend(
    model: Annotated[str, typer.Option(help="A size (medium-512, …), a published model (bert-base, …) or a folder.")],
    budget: Annotated[float, typer.Option(min=0, help="How many percent worse than the baseline is acceptable.")] = 5.0,
    results: Annotated[Path, typer.Option(help="Folder with measured runs.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Say which method to use for a model, from measured runs only, with the evidence and its limits."""
    from oelm.analysis.recommend import advise
    from oelm.analysis.results import load_runs
    from oelm.inspection import inspect_model
    from oelm.models.gpt import SIZES

    baseline = inspect_model(model, "baseline")  # refuses an unknown model before anything is read
    advice = advise(load_runs(results), "decoder" if model in SIZES else "encoder", budget)
    costs: dict[str, Any] = {}
    for name in advice.verdicts:
        facts = inspect_model(model, name)
        costs[name] = {key: facts[key] for key in ("step_flops_vs_baseline", "trainable_parameters")}
    if as_json:
        facts = {"model": model, "total_parameters": baseline["total_parameters"], **advice.to_dict(), "costs": costs}
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(model, results, advice, costs)


def _print(model: str, results: Path, advice: "Advice", costs: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not advice.evidence:
        console.print(f"Nothing is known: {results} has no finished runs of a {advice.kind} with a freezing method")
        console.print("and a baseline beside it. Measure first, e.g. with 'oelm run controls --scale mini'.")
        return
    if advice.method:
        saved = 100 * (1 - costs[advice.method]["step_flops_vs_baseline"])
        console.print(
            f"[bold]{advice.method}[/]: at most {advice.budget:g} % worse than its baseline in every study of a "
            f"{advice.kind} here; {saved:.1f} % fewer matmul FLOPs per step in {model}."
        )
    else:
        console.print(
            f"[bold]baseline[/]: no freezing method is surely within {advice.budget:g} % in the studies of a "
            f"{advice.kind} here. Train queries and keys, or accept a larger budget."
        )
    table = Table("method", "verdict", "study", "seeds", "gap", "worse by (95 %)", "against", "FLOPs", box=None)
    for name, verdict in advice.verdicts.items():
        for number, e in enumerate(e for e in advice.evidence if e.method == name):
            interval = "one seed" if e.worse_low is None else f"{e.worse_low:+.1f} … {e.worse_high:+.1f} %"
            cost = f"{costs[name]['step_flops_vs_baseline']:.3f}" if number == 0 else ""
            first = (name, verdict) if number == 0 else ("", "")
            where = f"{e.dataset} ({e.model})"
            table.add_row(*first, where, str(e.seeds), f"{e.gap:+.2f} {e.unit}", interval, e.baseline, cost)
    console.print(table)
    measured = sorted({e.model for e in advice.evidence})
    console.print(
        f"Limits: measured with {'; '.join(measured)}, asked for {model}. What holds there may not hold here;"
    )
    console.print("FLOPs (of a training step, as a multiple of the baseline's) are counted for your model, not timed.")
