"""`oelm experiments`: what the catalog has, what the original study reports, and how far our own runs are. No torch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from oelm.cli.console import command_console
from oelm.runs import RunFolder, facts_of

if TYPE_CHECKING:
    from oelm.experiments.entries import Experiment, Published


def experiments(
    root: Annotated[Path, typer.Option("--runs", help="Where runs lie, in a folder per scale.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the published experiments and our comparisons, with the published result and the state of our own runs."""
    from oelm.experiments.entries import SCALES, catalog, chosen, suites

    rows = {e.name: _row(e) for e in chosen(["all", *catalog()])}  # the published ones first
    for scale in SCALES:
        for name, runs in _runs(root / scale, scale).items():
            rows[name]["runs"][scale] = runs
    if as_json:
        typer.echo(json.dumps({"experiments": list(rows.values()), "suites": suites()}, indent=2))
        return
    console = command_console()
    table = Table("id", "what", "published", "full", "mini", box=None, pad_edge=False)
    for row in rows.values():
        table.add_row(row["id"], row["summary"], _published(row["published"]), *(_state(row, s) for s in SCALES[:2]))
    console.print(table)
    for name, members in suites().items():
        console.print(f"[bold]{name}[/]: {', '.join(members)}")


def _row(experiment: "Experiment") -> dict[str, Any]:
    return {
        "id": experiment.name,
        "summary": experiment.summary,
        "kind": "classification" if experiment.task else "language-model",
        "dataset": experiment.dataset,
        "arms": experiment.arms,
        "variants": [variant.name for variant in experiment.variants],
        "published": _figures(experiment.published),
        "runs": {},
    }


def _figures(published: "Published | None") -> dict[str, Any] | None:
    return published.model_dump(exclude_defaults=True) if published else None


def _runs(root: Path, scale: str) -> dict[str, list[dict[str, Any]]]:
    """The runs that are there, by experiment."""
    from oelm.experiments.entries import catalog
    from oelm.experiments.suite import runs_of

    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs_of(catalog(), root, scale) if root.is_dir() else []:
        facts = facts_of(RunFolder(run.folder))
        kept = {key: facts.get(key) for key in ("run", "state", "step", "max_steps", "perplexity", "accuracy")}
        found.setdefault(run.experiment, []).append({"arm": run.arm, "seed": run.seed, **kept})
    return found


def _published(figures: dict[str, Any] | None) -> str:
    if not figures:
        return ""
    return f"{figures['accuracy']:.2%}" if "accuracy" in figures else f"PPL {figures['perplexity']:.2f}"


def _state(row: dict[str, Any], scale: str) -> str:
    """How many runs are finished, and the mean result where they are all of one arm."""
    runs = row["runs"].get(scale, [])
    finished = [run for run in runs if run["state"] == "finished"]
    if not runs:
        return ""
    said = f"{len(finished)}/{len(runs)}"
    if finished and len(row["arms"]) == 1 and not row["variants"]:
        key = "perplexity" if finished[0]["perplexity"] is not None else "accuracy"
        mean = sum(run[key] for run in finished) / len(finished)
        said += f": {mean:.2%}" if key == "accuracy" else f": {mean:.2f}"
    running = sum(run["state"] == "running" for run in runs)
    return said + (f", {running} running" if running else "")
